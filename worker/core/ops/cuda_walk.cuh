// A Walk (strided.h) as a kernel's parameter, and the offsets that it gives an element.
#pragma once

#include <cstdint>

#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/strided.h"

namespace weft::cuda {

struct DeviceWalk {
  int rank;
  int64_t elements;
  int64_t dims[kMaxRank];
  int64_t strides[kMaxWalked][kMaxRank];
};

inline DeviceWalk ToDevice(const Walk& walk) {
  DeviceWalk d = {};
  d.rank = walk.rank;
  d.elements = walk.elements;
  for (int axis = 0; axis < walk.rank; ++axis) {
    d.dims[axis] = walk.dims[axis];
    for (int i = 0; i < walk.operands; ++i) d.strides[i][axis] = walk.strides[i][axis];
  }
  return d;
}

// Offsets of element `i` in each operand. Index is uint32_t where the number of elements fits.
template <typename Index, int kOperands>
__device__ __forceinline__ void OffsetsOf(const DeviceWalk& walk, Index i,
                                          int64_t (&offset)[kOperands]) {
#pragma unroll
  for (int k = 0; k < kOperands; ++k) offset[k] = 0;
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    const Index dim = static_cast<Index>(walk.dims[axis]);
    const Index rest = i / dim;
    const int64_t at = static_cast<int64_t>(i - rest * dim);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) offset[k] += at * walk.strides[k][axis];
    i = rest;
  }
}

__device__ __forceinline__ int64_t OffsetOf(const DeviceWalk& walk, int64_t i) {
  if (walk.rank == 0) return 0;
  if (walk.rank == 1) return i * walk.strides[0][0];
  int64_t offset[1];
  if (walk.elements < (int64_t{1} << 31)) {
    OffsetsOf<uint32_t>(walk, static_cast<uint32_t>(i), offset);
  } else {
    OffsetsOf<uint64_t>(walk, static_cast<uint64_t>(i), offset);
  }
  return offset[0];
}

}  // namespace weft::cuda
