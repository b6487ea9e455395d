// What CUDA kernel files share: element types, 16-byte loads, sums in a fixed order, launch errors.
// Included by .cu files only. Every sum here is a fixed tree, so a result depends on the shape of
// the launch and never on which block runs when.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "worker/core/dispatch/kernel_args.h"

namespace weft::cuda {

using bf16 = __nv_bfloat16;

inline constexpr int kWarp = 32;

inline cudaStream_t StreamOf(const KernelArgs& args) {
  return static_cast<cudaStream_t>(args.stream.handle);
}

// What a launcher returns after its last launch.
inline int LaunchError() { return static_cast<int>(cudaGetLastError()); }

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements compute in float, f64 in double.
template <typename T>
struct Compute {
  using Type = float;
};
template <>
struct Compute<double> {
  using Type = double;
};
template <typename T>
using ComputeType = typename Compute<T>::Type;

template <typename T>
__device__ __forceinline__ ComputeType<T> Load(T x) {
  return static_cast<ComputeType<T>>(x);
}
template <>
__device__ __forceinline__ float Load<bf16>(bf16 x) {
  return __bfloat162float(x);
}
// To nearest, ties to even.
template <typename T>
__device__ __forceinline__ T Round(ComputeType<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ __forceinline__ bf16 Round<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// As many elements as one 16-byte access moves. Addresses are multiples of 16.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};
template <typename T>
__device__ __forceinline__ Pack<T> LoadPack(const T* p) {
  Pack<T> pack;
  *reinterpret_cast<uint4*>(&pack) = *reinterpret_cast<const uint4*>(p);
  return pack;
}
// For bytes that nobody reads again soon.
template <typename T>
__device__ __forceinline__ Pack<T> StreamPack(const T* p) {
  Pack<T> pack;
  *reinterpret_cast<uint4*>(&pack) = __ldcs(reinterpret_cast<const uint4*>(p));
  return pack;
}
template <typename T>
__device__ __forceinline__ void StorePack(T* p, const Pack<T>& pack) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&pack);
}
inline bool IsAligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

// Over a warp; every lane gets the result.
template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
template <typename T>
__device__ __forceinline__ T WarpMax(T x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(~0u, x, offset);
    x = other > x || other != other ? other : x;
  }
  return x;
}

// Over a block of kThreads (a multiple of 32, at most 1024); every thread gets the result. All
// threads call it, and may call it again at once.
template <int kThreads, typename T>
__device__ __forceinline__ T BlockSum(T x) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ T partial[kWarps];
  x = WarpSum(x);
  if constexpr (kWarps > 1) {
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = T{0};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) x += partial[i];
  }
  return x;
}

// The running step's number: in a captured step it is read when the kernel runs.
struct StepNumber {
  const int64_t* at;
  int64_t value;
  __device__ int64_t get() const { return at != nullptr ? *at : value; }
};
inline StepNumber StepOf(const KernelArgs& args) { return {args.device_step, args.step.step}; }

// Whether in-place ops must leave their inputs alone.
__device__ __forceinline__ bool Closed(const int32_t* gate) {
  return gate != nullptr && *gate != 0;
}

// Calls body(T{}) with the element type of `dtype`; cudaErrorInvalidValue for one that is not a
// float.
template <typename Body>
int ForFloat(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(bf16{});
    case DType::kF64:
      return body(double{});
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace weft::cuda
