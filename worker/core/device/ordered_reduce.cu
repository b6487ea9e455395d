// Element-wise: each thread takes kUnroll packs of 16 bytes, walks the nodes in lane order with a
// stack in registers, and writes the sum. The stack shifts instead of being indexed, so that it
// stays in registers; pushes and additions are the same for all threads, so nothing diverges. The
// next node's packs are on their way while this one's are added. A read of `from` and the write of
// `to` at one element are the same thread's, so the two may be one buffer.
#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "worker/core/device/ordered_reduce.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerProcessor = 8;

template <typename T>
struct alignas(16) Wide {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};
// Where an address is not a multiple of 16.
template <typename T>
struct Narrow {
  static constexpr int kSize = 1;
  T value[1];
};

// Read once.
template <typename T>
__device__ __forceinline__ Wide<T> Load(const Wide<T>* p) {
  Wide<T> pack;
  *reinterpret_cast<uint4*>(&pack) = __ldcs(reinterpret_cast<const uint4*>(p));
  return pack;
}
template <typename T>
__device__ __forceinline__ Narrow<T> Load(const Narrow<T>* p) {
  return {{__ldcs(p->value)}};
}
template <typename T>
__device__ __forceinline__ void Store(Wide<T>* p, const Wide<T>& pack) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&pack);
}
template <typename T>
__device__ __forceinline__ void Store(Narrow<T>* p, const Narrow<T>& pack) {
  *p = pack;
}

template <typename P>
__device__ __forceinline__ P Plus(const P& left, const P& right) {
  P sum;
#pragma unroll
  for (int i = 0; i < P::kSize; ++i) sum.value[i] = left.value[i] + right.value[i];
  return sum;
}

// Packs first, first + stride, ... of `packs`, kUnroll of them.
template <typename P, int kDepth, int kUnroll>
__device__ __forceinline__ void AddPacks(const OrderedSum& sum, void* to, int64_t first,
                                         int64_t stride, int64_t packs) {
  P stack[kDepth][kUnroll] = {};
  P next[kUnroll] = {};
  const auto fetch = [&](int node) {
    const P* from = static_cast<const P*>(sum.from[node]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * stride < packs) next[u] = Load(from + first + u * stride);
    }
  };
  fetch(0);
  for (int node = 0; node < sum.nodes; ++node) {
#pragma unroll
    for (int d = kDepth - 1; d > 0; --d) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) stack[d][u] = stack[d - 1][u];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) stack[0][u] = next[u];
    if (node + 1 < sum.nodes) fetch(node + 1);
    for (int add = sum.adds[node]; add > 0; --add) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) stack[0][u] = Plus(stack[1][u], stack[0][u]);
#pragma unroll
      for (int d = 1; d + 1 < kDepth; ++d) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) stack[d][u] = stack[d + 1][u];
      }
    }
  }
  P* const out = static_cast<P*>(to);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (first + u * stride < packs) Store(out + first + u * stride, stack[0][u]);
  }
}

template <typename P, int kDepth, int kUnroll>
__global__ void __launch_bounds__(kThreads, kDepth <= 4 ? 4 : 1)
    AddKernel(const __grid_constant__ OrderedSum sum, void* to, int64_t count) {
  using T = decltype(P::value[0] + P::value[0]);
  const int64_t packs = count / P::kSize;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t self = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t first = self; first < packs; first += threads * kUnroll) {
    AddPacks<P, kDepth, kUnroll>(sum, to, first, threads, packs);
  }
  // What does not fill a pack, by the first threads.
  if constexpr (P::kSize > 1) {
    const int64_t rest = packs * P::kSize + self;
    if (rest < count) AddPacks<Narrow<T>, kDepth, 1>(sum, to, rest, 1, rest + 1);
  }
}

template <typename P, int kDepth, int kUnroll>
int Launch(const OrderedSum& sum, void* to, int64_t count, int processors, void* stream) {
  const int64_t each = static_cast<int64_t>(kThreads) * kUnroll * P::kSize;
  const int64_t most = static_cast<int64_t>(std::max(processors, 1)) * kBlocksPerProcessor;
  const int64_t blocks = std::clamp<int64_t>((count + each - 1) / each, 1, most);
  AddKernel<P, kDepth, kUnroll>
      <<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(sum, to,
                                                                                          count);
  return static_cast<int>(cudaGetLastError());
}

// Calls body<kDepth, kUnroll>() with a stack that is deep enough.
template <typename Body>
int ForDepth(int depth, Body&& body) {
  if (depth <= 4) return body.template operator()<4, 2>();
  if (depth <= 8) return body.template operator()<8, 2>();
  if (depth <= OrderedSum::kMostDepth) return body.template operator()<OrderedSum::kMostDepth, 1>();
  return static_cast<int>(cudaErrorInvalidValue);
}

// Unsigned, so that overflow wraps.
template <typename Body>
int ForType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kI32:
      return body(uint32_t{});
    case DType::kI64:
      return body(uint64_t{});
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

bool IsWide(const OrderedSum& sum, const void* to) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(to);
  for (int n = 0; n < sum.nodes; ++n) bits |= reinterpret_cast<uintptr_t>(sum.from[n]);
  return bits % 16 == 0;
}

template <typename P, int kDepth, int kUnroll>
int LoadKernel() {
  cudaFuncAttributes attributes;
  return static_cast<int>(cudaFuncGetAttributes(&attributes, AddKernel<P, kDepth, kUnroll>));
}

}  // namespace

int AddInOrder(DType dtype, const OrderedSum& sum, void* to, int64_t count, int processors,
               void* stream) {
  if (count == 0) return 0;
  if (sum.nodes < 1 || sum.nodes > OrderedSum::kMostNodes) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const bool wide = IsWide(sum, to);
  return ForType(dtype, [&](auto element) {
    using T = decltype(element);
    return ForDepth(sum.depth, [&]<int kDepth, int kUnroll>() {
      return wide ? Launch<Wide<T>, kDepth, kUnroll>(sum, to, count, processors, stream)
                  : Launch<Narrow<T>, kDepth, kUnroll>(sum, to, count, processors, stream);
    });
  });
}

int LoadAddInOrder() {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64}) {
    for (const int depth : {4, 8, OrderedSum::kMostDepth}) {
      const int error = ForType(dtype, [&](auto element) {
        using T = decltype(element);
        return ForDepth(depth, [&]<int kDepth, int kUnroll>() {
          const int wide = LoadKernel<Wide<T>, kDepth, kUnroll>();
          return wide != 0 ? wide : LoadKernel<Narrow<T>, kDepth, kUnroll>();
        });
      });
      if (error != 0) return error;
    }
  }
  return 0;
}

}  // namespace weft
