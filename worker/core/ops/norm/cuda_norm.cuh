// What the norms' two CUDA files share. A row is cut into vectors of kSize elements: 16 bytes where
// the width and the addresses allow, else one element.
#pragma once

#include <cstdint>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"

namespace weft {

// In cuda_backward.cu.
void RegisterNormBackwardCuda(KernelTable* table);

namespace norm_cuda {

inline constexpr int64_t kMostWidth = 16384;

// Elements of a 16-byte vector, 1 where rows of this width do not consist of them.
inline int VectorSize(DType dtype, int64_t width) {
  const int size = static_cast<int>(16 / SizeOf(dtype));
  return width % size == 0 ? size : 1;
}

// A vector as it lies in memory. Words and not elements: an element of its own would take a
// register of its own as soon as it arrives, and the next read would wait for that.
template <typename T, int kSize>
struct Vector {
  static_assert(kSize * sizeof(T) == 16);
  uint32_t word[4];
};
template <typename T>
struct Vector<T, 1> {
  T value;
};

template <typename T, int kSize>
__device__ __forceinline__ void Widen(const Vector<T, kSize>& v, float (&to)[kSize]) {
  if constexpr (kSize == 1) {
    to[0] = cuda::Load(v.value);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(v.word[i] << 16);
      to[2 * i + 1] = __uint_as_float(v.word[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(v.word[i]);
  }
}

template <typename T, int kSize>
__device__ __forceinline__ Vector<T, kSize> Narrow(const float (&from)[kSize]) {
  Vector<T, kSize> v;
  if constexpr (kSize == 1) {
    v.value = cuda::Round<T>(from[0]);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      v.word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v.word[i] = __float_as_uint(from[i]);
  }
  return v;
}

// The inputs of norms are read once here and not again for a long time.
template <int kSize, typename T>
__device__ __forceinline__ Vector<T, kSize> ReadOnce(const T* p) {
  if constexpr (kSize == 1) {
    return {*p};
  } else {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(p));
    return {{words.x, words.y, words.z, words.w}};
  }
}

template <typename T, int kSize>
__device__ __forceinline__ void Store(T* p, const Vector<T, kSize>& v) {
  if constexpr (kSize == 1) {
    *p = v.value;
  } else {
    *reinterpret_cast<uint4*>(p) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
  }
}

// Makes the compiler hold the vector as it was read, and not what it widened it to: registers are
// what limits how much is under way.
template <typename T, int kSize>
__device__ __forceinline__ void KeepNarrow(Vector<T, kSize>& v) {
  if constexpr (kSize > 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(v.word[i]));
  }
}

// Weights, which all rows share.
template <int kSize>
__device__ __forceinline__ void LoadWeights(const float* p, float (&to)[kSize]) {
  if constexpr (kSize == 1) {
    to[0] = __ldg(p);
  } else {
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(p + i));
      to[i] = four.x;
      to[i + 1] = four.y;
      to[i + 2] = four.z;
      to[i + 3] = four.w;
    }
  }
}

// Over the kGroup neighbors (a power of two, at most a warp) that share a row; all lanes call it.
template <int kGroup>
__device__ __forceinline__ float LaneSum(float x) {
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

}  // namespace norm_cuda
}  // namespace weft
