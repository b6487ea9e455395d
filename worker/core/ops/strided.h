// Walking operands of any strides in the row-major order of one shape. Standard library only; no
// state but what the caller holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "fabric/base/array_ref.h"

namespace weft {

inline constexpr int kMaxWalked = 3;

// A shape with the strides of up to kMaxWalked operands over it, adjacent dimensions merged where
// all operands allow it. Rank 0: one element.
struct Walk {
  int rank = 0;
  int operands = 0;
  int64_t elements = 1;
  int64_t dims[kMaxRank] = {};
  int64_t strides[kMaxWalked][kMaxRank] = {};

  // The innermost dimension and an operand's step along it.
  int64_t inner() const { return rank == 0 ? 1 : dims[rank - 1]; }
  int64_t inner_stride(int operand) const { return rank == 0 ? 1 : strides[operand][rank - 1]; }
  // Whether all operands are plain runs of memory.
  bool linear() const {
    if (rank > 1) return false;
    for (int i = 0; i < operands; ++i) {
      if (inner_stride(i) != 1) return false;
    }
    return true;
  }
};

// Appends a dimension, merged into the one before where that changes nothing.
inline void AppendDim(Walk* walk, int64_t dim, const int64_t* strides) {
  walk->elements *= dim;
  if (dim == 1) return;
  bool merge = walk->rank > 0;
  for (int i = 0; i < walk->operands && merge; ++i) {
    merge = walk->strides[i][walk->rank - 1] == strides[i] * dim;
  }
  const int at = merge ? walk->rank - 1 : walk->rank++;
  walk->dims[at] = merge ? walk->dims[at] * dim : dim;
  for (int i = 0; i < walk->operands; ++i) walk->strides[i][at] = strides[i];
}

// `operands` broadcast over `shape` by NumPy's rule; they have been checked to.
inline Walk MakeWalk(const Shape& shape, const ArrayRef* operands, int count) {
  Walk walk;
  walk.operands = count;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    int64_t strides[kMaxWalked] = {};
    for (int i = 0; i < count; ++i) {
      const int own = axis - (shape.rank() - operands[i].shape.rank());
      const bool present = own >= 0 && (operands[i].shape.dim(own) != 1 || shape.dim(axis) == 1);
      strides[i] = present ? operands[i].strides.dim(own) : 0;
    }
    AppendDim(&walk, shape.dim(axis), strides);
  }
  return walk;
}

// Elements [begin, begin + count) of an operand in the walk's order: a pointer into the operand
// where they are a run there, else into `buffer`, which holds `count` elements.
template <typename T>
const T* WalkRun(const Walk& walk, int operand, const T* base, int64_t begin, int64_t count,
                 T* buffer) {
  const int64_t* strides = walk.strides[operand];
  if (walk.rank == 0) return base;
  int64_t index[kMaxRank];
  int64_t offset = 0;
  int64_t rest = begin;
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    index[axis] = rest % walk.dims[axis];
    rest /= walk.dims[axis];
    offset += index[axis] * strides[axis];
  }
  const int last = walk.rank - 1;
  if (strides[last] == 1 && index[last] + count <= walk.dims[last]) return base + offset;
  T* out = buffer;
  while (true) {
    const int64_t run = std::min(count, walk.dims[last] - index[last]);
    const T* from = base + offset;
    const int64_t step = strides[last];
    if (step == 1) {
      std::memcpy(out, from, run * sizeof(T));
    } else if (step == 0) {
      std::fill_n(out, run, *from);
    } else {
      for (int64_t i = 0; i < run; ++i) out[i] = from[i * step];
    }
    out += run;
    count -= run;
    if (count == 0) return buffer;
    offset -= index[last] * step;
    index[last] = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      offset += strides[axis];
      if (++index[axis] < walk.dims[axis]) break;
      offset -= walk.dims[axis] * strides[axis];
      index[axis] = 0;
    }
  }
}

// How many elements from `begin` on to take as one block, at most `most`: rows long enough to pay
// for themselves are not crossed, so that WalkRun finds runs.
inline int64_t BlockLength(const Walk& walk, int64_t begin, int64_t end, int64_t most) {
  const int64_t length = std::min(end - begin, most);
  if (walk.rank < 2 || walk.inner() < 128) return length;
  return std::min(length, walk.inner() - begin % walk.inner());
}

// Tiles of about this many elements are worth handing to a thread.
inline constexpr int64_t kTileElements = 16384;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace weft
