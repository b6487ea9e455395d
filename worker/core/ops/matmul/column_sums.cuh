// Sums of the columns of a row-major matrix in two launches: stripes of rows, then the stripes in
// rising order. Shape alone says who adds what, so bits do not depend on anything else.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/core/ops/cuda_kernel.cuh"

namespace weft::cuda {

inline constexpr int kStripeLanes = 32;  // threads across
inline constexpr int kStripeRows = 8;    // threads down
inline constexpr int64_t kStripesMost = 64;

// Block (x, y): 32 packs of columns of stripe y.
template <typename T, int kSize>
__global__ void __launch_bounds__(kStripeLanes* kStripeRows)
    StripeSumsKernel(const T* x, int64_t rows, int64_t n, int64_t stripe, float* partial) {
  __shared__ float shared[kStripeRows][kStripeLanes * kSize];
  const int lane = threadIdx.x % kStripeLanes, down = threadIdx.x / kStripeLanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kStripeLanes + lane) * kSize;
  const int64_t first = blockIdx.y * stripe, end = min(rows, first + stripe);
  float sum[kSize] = {};
  if (column < n) {
#pragma unroll 4
    for (int64_t row = first + down; row < end; row += kStripeRows) {
      if constexpr (kSize == 1) {
        sum[0] += Load(x[row * n + column]);
      } else {
        const Pack<T> pack = LoadPack(x + row * n + column);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum[i] += Load(pack.value[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) shared[down][i * kStripeLanes + lane] = sum[i];
  __syncthreads();
  for (int at = threadIdx.x; at < kStripeLanes * kSize; at += kStripeLanes * kStripeRows) {
    float all = shared[0][at];
#pragma unroll
    for (int d = 1; d < kStripeRows; ++d) all += shared[d][at];
    const int64_t to =
        (static_cast<int64_t>(blockIdx.x) * kStripeLanes + at % kStripeLanes) * kSize +
        at / kStripeLanes;
    if (to < n) partial[blockIdx.y * n + to] = all;
  }
}

// sums[i] = partial[0][i] + partial[1][i] + ...; rows of `partial` are `stride` apart.
static __global__ void __launch_bounds__(kStripeLanes* kStripeLanes)
    JoinStripesKernel(const float* partial, int64_t count, int64_t stride, int64_t n, float* sums) {
  __shared__ float shared[kStripeLanes][kStripeLanes + 1];
  const int lane = threadIdx.x % kStripeLanes, warp = threadIdx.x / kStripeLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kStripeLanes + lane;
  float sum = 0;
  if (column < n) {
#pragma unroll 4
    for (int64_t s = warp; s < count; s += kStripeLanes) sum += partial[s * stride + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  sum = WarpSum(shared[lane][warp]);
  const int64_t to = static_cast<int64_t>(blockIdx.x) * kStripeLanes + warp;
  if (lane == 0 && to < n) sums[to] = sum;
}

inline void LaunchJoinStripes(const float* partial, int64_t count, int64_t stride, int64_t n,
                              float* sums, cudaStream_t stream) {
  if (n == 0) return;
  JoinStripesKernel<<<static_cast<unsigned>(CeilDiv(n, kStripeLanes)), kStripeLanes * kStripeLanes,
                      0, stream>>>(partial, count, stride, n, sums);
}

inline int64_t StripesOf(int64_t rows) {
  return std::clamp<int64_t>(CeilDiv(rows, 4 * kStripeRows), 1, kStripesMost);
}
inline int64_t ColumnSumsScratch(int64_t rows, int64_t n) {
  return StripesOf(rows) * n * static_cast<int64_t>(sizeof(float));
}

// `scratch`: ColumnSumsScratch() bytes.
template <typename T>
void LaunchColumnSums(const T* x, int64_t rows, int64_t n, float* scratch, float* sums,
                      cudaStream_t stream) {
  if (n == 0) return;
  const int64_t stripes = StripesOf(rows), stripe = std::max<int64_t>(1, CeilDiv(rows, stripes));
  constexpr int kSize = Pack<T>::kSize;
  const bool packs = n % kSize == 0 && IsAligned(x);
  const int64_t columns = int64_t{kStripeLanes} * (packs ? kSize : 1);
  const dim3 grid(static_cast<unsigned>(CeilDiv(n, columns)), static_cast<unsigned>(stripes));
  constexpr int kThreads = kStripeLanes * kStripeRows;
  if (packs) {
    StripeSumsKernel<T, kSize><<<grid, kThreads, 0, stream>>>(x, rows, n, stripe, scratch);
  } else {
    StripeSumsKernel<T, 1><<<grid, kThreads, 0, stream>>>(x, rows, n, stripe, scratch);
  }
  LaunchJoinStripes(scratch, stripes, n, n, sums, stream);
}

}  // namespace weft::cuda
