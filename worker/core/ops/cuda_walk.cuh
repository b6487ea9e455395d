// A Walk (strided.h) as a kernel's parameter, and the offsets that it gives an element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/strided.h"

namespace weft::cuda {

// Below this, numbers of elements are counted in 32 bits and divided by Divisor.
inline constexpr int64_t kMost32 = int64_t{1} << 31;

// Division of numbers below 2^31 by one that the host knows: a product and a shift. Granlund,
// Montgomery: "Division by invariant integers using multiplication", PLDI 1994, figure 4.1.
struct Divisor {
  uint32_t value = 1;
  uint32_t factor = 1;
  uint32_t shift = 0;

  Divisor() = default;
  // Of 1 to 2^31 - 1; others are not divided by.
  explicit Divisor(int64_t divisor) {
    if (divisor < 1 || divisor >= kMost32) return;
    value = static_cast<uint32_t>(divisor);
    while ((uint64_t{1} << shift) < value) ++shift;
    factor = static_cast<uint32_t>((((uint64_t{1} << shift) - value) << 32) / value + 1);
  }
  __device__ __forceinline__ uint32_t Quotient(uint32_t n) const {
    return (__umulhi(n, factor) + n) >> shift;
  }
};

struct DeviceWalk {
  int rank = 0;
  int64_t elements = 1;
  int64_t dims[kMaxRank] = {};
  Divisor divisors[kMaxRank];
  int64_t strides[kMaxWalked][kMaxRank] = {};
};

inline DeviceWalk ToDevice(const Walk& walk) {
  DeviceWalk d;
  d.rank = walk.rank;
  d.elements = walk.elements;
  for (int axis = 0; axis < walk.rank; ++axis) {
    d.dims[axis] = walk.dims[axis];
    d.divisors[axis] = Divisor(walk.dims[axis]);
    for (int i = 0; i < walk.operands; ++i) d.strides[i][axis] = walk.strides[i][axis];
  }
  return d;
}

// `n` divided by dimension `axis`.
__device__ __forceinline__ uint32_t DividedBy(const DeviceWalk& walk, int axis, uint32_t n) {
  return walk.divisors[axis].Quotient(n);
}
__device__ __forceinline__ uint64_t DividedBy(const DeviceWalk& walk, int axis, uint64_t n) {
  return n / static_cast<uint64_t>(walk.dims[axis]);
}

// Offsets of element `i` in each operand. Index is uint32_t where there are fewer than kMost32
// elements, else uint64_t.
template <typename Index, int kOperands>
__device__ __forceinline__ void OffsetsOf(const DeviceWalk& walk, Index i,
                                          int64_t (&offset)[kOperands]) {
#pragma unroll
  for (int k = 0; k < kOperands; ++k) offset[k] = 0;
#pragma unroll 1
  for (int axis = walk.rank - 1; axis > 0; --axis) {
    const Index rest = DividedBy(walk, axis, i);
    const int64_t at = static_cast<int64_t>(i - rest * static_cast<Index>(walk.dims[axis]));
#pragma unroll
    for (int k = 0; k < kOperands; ++k) offset[k] += at * walk.strides[k][axis];
    i = rest;
  }
#pragma unroll
  for (int k = 0; k < kOperands; ++k) offset[k] += static_cast<int64_t>(i) * walk.strides[k][0];
}

// The same for any number of elements.
template <int kOperands>
__device__ __forceinline__ void AllOffsetsOf(const DeviceWalk& walk, int64_t i,
                                             int64_t (&offset)[kOperands]) {
  if (walk.elements < kMost32) {
    OffsetsOf<uint32_t>(walk, static_cast<uint32_t>(i), offset);
  } else {
    OffsetsOf<uint64_t>(walk, static_cast<uint64_t>(i), offset);
  }
}

// A call, so that the usual case below stays short.
static __device__ __noinline__ int64_t RankedOffset(const DeviceWalk* walk, int64_t i) {
  int64_t offset[1];
  AllOffsetsOf(*walk, i, offset);
  return offset[0];
}

// Of operand 0. The walk is a kernel's __grid_constant__.
__device__ __forceinline__ int64_t OffsetOf(const DeviceWalk& walk, int64_t i) {
  return walk.rank <= 1 ? i * walk.strides[0][0] : RankedOffset(&walk, i);
}

// The walk in units of `each` elements of its innermost dimension, which is a multiple of it, as
// are the other strides of operands that are runs there. Strides stay in elements.
inline Walk InUnitsOf(Walk walk, int64_t each) {
  if (walk.rank == 0) return walk;
  const int last = walk.rank - 1;
  walk.elements /= each;
  walk.dims[last] /= each;
  for (int i = 0; i < walk.operands; ++i) walk.strides[i][last] *= each;
  return walk;
}

// Whether operand `i` is read in whole units of `each` elements, given an address that is a
// multiple of a unit.
inline bool InWholeUnits(const Walk& walk, int operand, int64_t each) {
  if (walk.rank == 0 || walk.inner_stride(operand) != 1) return each == 1;
  if (walk.inner() % each != 0) return false;
  for (int axis = 0; axis + 1 < walk.rank; ++axis) {
    if (walk.strides[operand][axis] % each != 0) return false;
  }
  return true;
}

}  // namespace weft::cuda
