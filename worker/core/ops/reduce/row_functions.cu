// Softmax, log_softmax and argmax on CUDA. A row belongs to a warp or, where it is wider, to a
// block. Its elements are read once and stay in registers; only rows wider than a block holds are
// read again. Which thread takes which element follows from the width alone.
#include <cmath>
#include <memory>
#include <string>
#include <type_traits>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/reduce/row_functions.h"
#include "worker/core/ops/reduce/state.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::Pack;
using cuda::StreamOf;

constexpr int kThreads = 256;
constexpr int kWideThreads = 1024;
constexpr int kMostElements = 32;  // of a row, in a thread's registers

// A NaN is passed over: it makes the sum one.
struct MaxOf {
  static __device__ float Of(float a, float b) { return fmaxf(a, b); }
};
struct SumOf {
  static __device__ float Of(float a, float b) { return a + b; }
};

// Over the kGroup threads of a row; every one gets the result. Once a kernel for each R.
template <class R, int kGroup>
__device__ __forceinline__ float GroupReduce(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = R::Of(x, __shfl_xor_sync(~0u, x, offset));
  }
  if constexpr (kGroup > kWarp) {
    __shared__ float partial[kGroup / kWarp];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = partial[0];
#pragma unroll
    for (int i = 1; i < kGroup / kWarp; ++i) x = R::Of(x, partial[i]);
  }
  return x;
}

struct Rows {
  const void* in;
  void* out;
  int64_t rows, width;
};

// Elements [column, column + kSize) of a row, as they are stored; -inf behind its end.
template <bool kPacked, typename T>
__device__ __forceinline__ Pack<T> LoadColumns(const T* x, int64_t column, const Rows& r) {
  Pack<T> pack;
  const T end = cuda::Round<T>(-INFINITY);
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) pack.value[k] = end;
  if constexpr (kPacked) {
    if (column < r.width) pack = cuda::LoadPack(x + column);
  } else {
#pragma unroll
    for (int k = 0; k < Pack<T>::kSize; ++k) {
      if (column + k < r.width) pack.value[k] = x[column + k];
    }
  }
  return pack;
}
template <typename T>
__device__ __forceinline__ void Widen(const Pack<T>& pack, float (&value)[Pack<T>::kSize]) {
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) value[k] = cuda::Load(pack.value[k]);
}

template <bool kPacked, typename T>
__device__ __forceinline__ void StoreColumns(T* y, int64_t column, const Rows& r,
                                             const float (&value)[Pack<T>::kSize]) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (kPacked) {
    Pack<T> pack;
#pragma unroll
    for (int k = 0; k < kSize; ++k) pack.value[k] = cuda::Round<T>(value[k]);
    if (column < r.width) cuda::StorePack(y + column, pack);
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (column + k < r.width) y[column + k] = cuda::Round<T>(value[k]);
    }
  }
}

template <typename T>
__device__ __forceinline__ float Exp(float x) {
  return std::is_same_v<T, bf16> ? __expf(x) : expf(x);
}

// kGroup threads a row, kElements of it in each thread.
template <bool kLog, bool kPacked, typename T, int kGroup, int kElements>
__global__ void __launch_bounds__(kGroup == kWarp ? kThreads : kGroup)
    HeldRowsKernel(const Rows r) {
  constexpr int kSize = Pack<T>::kSize, kPacks = kElements / kSize;
  constexpr int kPerBlock = kGroup == kWarp ? kThreads / kWarp : 1;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPerBlock + threadIdx.x / kGroup;
  if (row >= r.rows) return;
  const int lane = threadIdx.x % kGroup;
  const T* const x = static_cast<const T*>(r.in) + row * r.width;
  T* const y = static_cast<T*>(r.out) + row * r.width;
  Pack<T> pack[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    pack[p] = LoadColumns<kPacked>(x, (p * kGroup + lane) * kSize, r);
  }
  float value[kPacks][kSize];
  float most = -INFINITY;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    Widen(pack[p], value[p]);
#pragma unroll
    for (int k = 0; k < kSize; ++k) most = MaxOf::Of(most, value[p][k]);
  }
  most = GroupReduce<MaxOf, kGroup>(most);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float e = Exp<T>(value[p][k] - most);
      sum += e;
      if constexpr (!kLog) value[p][k] = e;
    }
  }
  sum = GroupReduce<SumOf, kGroup>(sum);
  const float factor = kLog ? logf(sum) : 1.0f / sum;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      value[p][k] = kLog ? value[p][k] - most - factor : value[p][k] * factor;
    }
    StoreColumns<kPacked>(y, (p * kGroup + lane) * kSize, r, value[p]);
  }
}

// Calls body(column, pack) for the thread's packs of a row that a block of kWideThreads shares.
template <bool kPacked, typename T, typename Body>
__device__ __forceinline__ void ForColumns(const T* x, const Rows& r, Body&& body) {
  constexpr int kAhead = 4;
  constexpr int64_t kStep = int64_t{kWideThreads} * Pack<T>::kSize;
  for (int64_t column = int64_t{threadIdx.x} * Pack<T>::kSize; column < r.width;
       column += kAhead * kStep) {
    Pack<T> pack[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) pack[u] = LoadColumns<kPacked>(x, column + u * kStep, r);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (column + u * kStep < r.width) body(column + u * kStep, pack[u]);
    }
  }
}

// A block a row of any width; it is read three times.
template <bool kLog, bool kPacked, typename T>
__global__ void __launch_bounds__(kWideThreads) LongRowsKernel(const Rows r) {
  constexpr int kSize = Pack<T>::kSize;
  const T* const x = static_cast<const T*>(r.in) + static_cast<int64_t>(blockIdx.x) * r.width;
  T* const y = static_cast<T*>(r.out) + static_cast<int64_t>(blockIdx.x) * r.width;
  float value[kSize];
  float most = -INFINITY;
  ForColumns<kPacked>(x, r, [&](int64_t, const Pack<T>& pack) {
    Widen(pack, value);
#pragma unroll
    for (int k = 0; k < kSize; ++k) most = MaxOf::Of(most, value[k]);
  });
  most = GroupReduce<MaxOf, kWideThreads>(most);
  float sum = 0;
  ForColumns<kPacked>(x, r, [&](int64_t, const Pack<T>& pack) {
    Widen(pack, value);
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum += Exp<T>(value[k] - most);
  });
  sum = GroupReduce<SumOf, kWideThreads>(sum);
  const float factor = kLog ? logf(sum) : 1.0f / sum;
  ForColumns<kPacked>(x, r, [&](int64_t column, const Pack<T>& pack) {
    Widen(pack, value);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      value[k] = kLog ? value[k] - most - factor : Exp<T>(value[k] - most) * factor;
    }
    StoreColumns<kPacked>(y, column, r, value);
  });
}

// An element and where it is; index -1: none yet.
struct Candidate {
  float value = 0;
  int32_t index = -1;

  // A NaN counts as greatest; the lowest index wins.
  __device__ bool Beats(const Candidate& other) const {
    if (index < 0 || other.index < 0) return index >= 0;
    const bool nan = value != value, other_nan = other.value != other.value;
    if (nan || other_nan) return nan && (!other_nan || index < other.index);
    return value > other.value || (value == other.value && index < other.index);
  }
};

template <bool kPacked, typename T, int kGroup>
__global__ void __launch_bounds__(kThreads) ArgmaxKernel(const Rows r) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (row >= r.rows) return;
  const int lane = threadIdx.x % kGroup;
  const T* const x = static_cast<const T*>(r.in) + row * r.width;
  Candidate best;
#pragma unroll 2
  for (int64_t column = int64_t{lane} * kSize; column < r.width;
       column += int64_t{kGroup} * kSize) {
    const Pack<T> pack = LoadColumns<kPacked>(x, column, r);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const Candidate here = {cuda::Load(pack.value[k]), static_cast<int32_t>(column + k)};
      if (column + k < r.width && here.Beats(best)) best = here;
    }
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Candidate other = {__shfl_xor_sync(~0u, best.value, offset),
                             __shfl_xor_sync(~0u, best.index, offset)};
    if (other.Beats(best)) best = other;
  }
  if constexpr (kGroup > kWarp) {
    __shared__ float values[kGroup / kWarp];
    __shared__ int32_t indices[kGroup / kWarp];
    if (threadIdx.x % kWarp == 0) {
      values[threadIdx.x / kWarp] = best.value;
      indices[threadIdx.x / kWarp] = best.index;
    }
    __syncthreads();
    for (int i = 0; i < kGroup / kWarp; ++i) {
      const Candidate other = {values[i], indices[i]};
      if (other.Beats(best)) best = other;
    }
  }
  if (lane == 0) static_cast<int32_t*>(r.out)[row] = best.index;
}

Bound BindRows(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  if (!x.contiguous() || !args.out[0].contiguous()) return {.error = "operands are not contiguous"};
  auto state = std::make_shared<RowState>();
  state->width = x.shape.dim(-1);
  state->rows = state->width == 0 ? 0 : x.elements() / state->width;
  return {.state = std::move(state)};
}

unsigned Blocks(int64_t rows, int64_t each) { return static_cast<unsigned>(CeilDiv(rows, each)); }

template <bool kLog, bool kPacked, typename T>
void LaunchSoftmax(const Rows& r, cudaStream_t stream) {
  const auto held = [&](auto group, auto elements) {
    constexpr int kGroup = decltype(group)::value, kElements = decltype(elements)::value;
    constexpr int kPerBlock = kGroup == kWarp ? kThreads / kWarp : 1;
    HeldRowsKernel<kLog, kPacked, T, kGroup, kElements>
        <<<Blocks(r.rows, kPerBlock), kGroup * kPerBlock, 0, stream>>>(r);
  };
  const auto of = [&](auto group) {
    constexpr int64_t kGroup = decltype(group)::value;
    if (r.width <= kGroup * 8) return held(group, std::integral_constant<int, 8>());
    if (r.width <= kGroup * 16) return held(group, std::integral_constant<int, 16>());
    return held(group, std::integral_constant<int, kMostElements>());
  };
  if (r.width <= kWarp * kMostElements) return of(std::integral_constant<int, kWarp>());
  if (r.width <= kThreads * kMostElements) return of(std::integral_constant<int, kThreads>());
  if (r.width <= kWideThreads * kMostElements) {
    return of(std::integral_constant<int, kWideThreads>());
  }
  LongRowsKernel<kLog, kPacked, T><<<Blocks(r.rows, 1), kWideThreads, 0, stream>>>(r);
}

template <bool kPacked, typename T>
void LaunchArgmax(const Rows& r, cudaStream_t stream) {
  if (r.width <= kWarp * kMostElements) {
    ArgmaxKernel<kPacked, T, kWarp><<<Blocks(r.rows, kThreads / kWarp), kThreads, 0, stream>>>(r);
  } else {
    ArgmaxKernel<kPacked, T, kThreads><<<Blocks(r.rows, 1), kThreads, 0, stream>>>(r);
  }
}

template <RowFunction kFunction, typename T>
int LaunchOf(const RowState& s, const KernelArgs& args) {
  const Rows r = {args.in[0].data, args.out[0].data, s.rows, s.width};
  constexpr bool kArgmax = kFunction == RowFunction::kArgmax;
  const auto launch = [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    if constexpr (kArgmax) {
      LaunchArgmax<kPacked, T>(r, StreamOf(args));
    } else {
      LaunchSoftmax<kFunction == RowFunction::kLogSoftmax, kPacked, T>(r, StreamOf(args));
    }
  };
  const bool packed =
      s.width % Pack<T>::kSize == 0 && cuda::IsAligned(r.in) && (kArgmax || cuda::IsAligned(r.out));
  packed ? launch(std::true_type()) : launch(std::false_type());
  return cuda::LaunchError();
}

template <RowFunction kFunction>
int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const RowState*>(raw);
  if (s.rows == 0) return 0;
  switch (args.in[0].dtype) {
    case DType::kF32:
      return LaunchOf<kFunction, float>(s, args);
    case DType::kBF16:
      return LaunchOf<kFunction, bf16>(s, args);
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace

void RegisterRowFunctionsCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("argmax", kCuda, {nullptr, BindRows, Launch<RowFunction::kArgmax>, true});
  table->Add("softmax", kCuda, {nullptr, BindRows, Launch<RowFunction::kSoftmax>, true});
  table->Add("log_softmax", kCuda, {nullptr, BindRows, Launch<RowFunction::kLogSoftmax>, true});
}

}  // namespace weft
