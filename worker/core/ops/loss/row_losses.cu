// A row of logits is read once and held while its loss and gradient are made: by a warp or a block
// in registers, by a block in shared memory where it is longer, two blocks a processor, so that one
// row is computed while another is on its way. Only rows that do not fit there are read three
// times. A row's bits depend neither on the other rows nor on how it is aligned: whoever holds it
// adds the same packs of 16 bytes, with -infinity behind the last class.
//
// Rows go from the last to the first: the product before has left the last ones in the cache, and
// the product after begins with the first ones.
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/loss/row_losses.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::Load;
using cuda::Pack;
using cuda::Round;

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^(x - shift) for many x; bf16 can do with an exponent that is rounded once more.
template <typename T>
struct ExpBelow {
  float shift;
  __device__ explicit ExpBelow(float s) : shift(sizeof(T) == 2 ? s * kLog2E : s) {}
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (sizeof(T) == 2) {
      return Exp2(fmaf(x, kLog2E, -shift));
    } else {
      return Exp2((x - shift) * kLog2E);
    }
  }
};

// Over the kThreads threads of a row; all get the result. A NaN may get lost: it reaches the sum.
template <int kThreads>
__device__ __forceinline__ float RowMax(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  }
  if constexpr (kThreads > kWarp) {
    __shared__ float partial[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = partial[0];
#pragma unroll
    for (int i = 1; i < kThreads / kWarp; ++i) x = fmaxf(x, partial[i]);
  }
  return x;
}
template <int kThreads>
__device__ __forceinline__ float RowSum(float x) {
  if constexpr (kThreads > kWarp) {
    return cuda::BlockSum<kThreads>(x);
  } else {
    return cuda::WarpSum(x);
  }
}
template <int kThreads>
__device__ __forceinline__ bool RowAny(bool x) {
  if constexpr (kThreads > kWarp) {
    return __syncthreads_or(x) != 0;
  } else {
    return __any_sync(~0u, x) != 0;
  }
}

// Columns [column, column + kSize) of a row, -infinity beyond its end.
template <typename T, bool kAligned>
__device__ __forceinline__ Pack<T> PackOf(const T* row, int column, int classes) {
  if constexpr (kAligned) {
    if (column < classes) return cuda::LoadPack(row + column);
  }
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) {
    pack.value[i] = !kAligned && column + i < classes ? row[column + i] : Round<T>(-INFINITY);
  }
  return pack;
}
template <typename T, bool kAligned>
__device__ __forceinline__ void StoreTo(T* row, int column, int classes, const Pack<T>& pack) {
  if constexpr (kAligned) {
    if (column < classes) cuda::StorePack(row + column, pack);
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) {
      if (column + i < classes) row[column + i] = pack.value[i];
    }
  }
}

template <typename T>
__device__ __forceinline__ float MaxOf(const Pack<T>& pack, float top) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) top = fmaxf(top, Load(pack.value[i]));
  return top;
}
template <typename T>
__device__ __forceinline__ float SumOf(const Pack<T>& pack, const ExpBelow<T>& exp) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) sum += exp(Load(pack.value[i]));
  return sum;
}
// Whether one of the pack's columns before `target` has the value `top`.
template <typename T>
__device__ __forceinline__ bool Earlier(const Pack<T>& pack, int column, int target, float top) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) {
    found = found || (column + i < target && Load(pack.value[i]) == top);
  }
  return found;
}
// (e^(x - lse) - [target]) scale.
template <typename T>
__device__ __forceinline__ Pack<T> GradOf(const Pack<T>& pack, int column, int target,
                                          const ExpBelow<T>& exp, float scale) {
  float d[Pack<T>::kSize];
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) d[i] = exp(Load(pack.value[i]));
  const int at = target - column;
  if (at >= 0 && at < Pack<T>::kSize) {
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; ++i) d[i] -= i == at ? 1.0f : 0.0f;
  }
  Pack<T> out;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) out.value[i] = Round<T>(d[i] * scale);
  return out;
}

struct Row {
  int64_t number;
  int target;
  bool counts;
};
__device__ __forceinline__ Row RowOf(const int32_t* targets, int64_t number, int classes) {
  const int target = targets[number];
  return {number, target, target >= 0 && target < classes};
}

__device__ __forceinline__ void StoreSums(const LossRows& r, const Row& row, float lse,
                                          float at_target, bool correct) {
  if (r.lse != nullptr) r.lse[row.number] = lse;
  r.sums[row.number] =
      row.counts ? RowSums{lse - at_target, 1, correct ? 1.0f : 0.0f} : RowSums{0, 0, 0};
}

// Rows in registers, kThreads a row; kWarp of them: eight rows a block.
template <typename T, int kThreads, int kPacks, bool kAligned>
__global__ void __launch_bounds__(kThreads == kWarp ? 8 * kWarp : kThreads)
    HeldRows(const LossRows r) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr int kRowsEach = kThreads == kWarp ? 8 : 1;
  const int thread = threadIdx.x % kThreads;
  const int64_t from_last = static_cast<int64_t>(blockIdx.x) * kRowsEach + threadIdx.x / kThreads;
  if (from_last >= r.rows) return;
  const Row row = RowOf(r.targets, r.rows - 1 - from_last, r.classes);
  const T* const logits = static_cast<const T*>(r.logits) + row.number * r.classes;
  // Whether pack p has columns at all, for any thread.
  const auto has = [&](int p) { return p == 0 || p * kThreads * kSize < r.classes; };
  const auto column = [&](int p) { return (p * kThreads + thread) * kSize; };
  Pack<T> held[kPacks];
  float top = -INFINITY;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (has(p)) held[p] = PackOf<T, kAligned>(logits, column(p), r.classes);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (has(p)) top = MaxOf(held[p], top);
  }
  top = RowMax<kThreads>(top);
  const ExpBelow<T> below_top(top);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (has(p)) sum += SumOf(held[p], below_top);
  }
  const float lse = top + logf(RowSum<kThreads>(sum));
  // Read before anybody writes over it.
  const float at_target = row.counts ? Load(logits[row.target]) : 0.0f;
  bool correct = row.counts && at_target == top;
  if (correct) {
    bool earlier = false;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      earlier = earlier || (has(p) && Earlier(held[p], column(p), row.target, top));
    }
    correct = !RowAny<kThreads>(earlier);
  }
  if (thread == 0) StoreSums(r, row, lse, at_target, correct);
  if (r.dlogits == nullptr) return;
  if constexpr (kThreads > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  T* const out = static_cast<T*>(r.dlogits) + row.number * r.classes;
  const ExpBelow<T> below_lse(lse);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!has(p)) continue;
    Pack<T> d = {};
    if (row.counts) d = GradOf(held[p], column(p), row.target, below_lse, 1.0f);
    StoreTo<T, kAligned>(out, column(p), r.classes, d);
  }
}

// Rows in shared memory, a block a row.
constexpr int kSharedThreads = 512;
constexpr int kMostShared = 226 * 1024;

__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}

template <typename T, bool kAligned>
__device__ __forceinline__ void Hold(const T* logits, int classes, T* held) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (kAligned) {
    for (int column = threadIdx.x * kSize; column < classes; column += kSharedThreads * kSize) {
      CopyAsync(held + column, logits + column);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    const int end = (classes + kSize - 1) / kSize * kSize;
    for (int column = threadIdx.x; column < end; column += kSharedThreads) {
      held[column] = column < classes ? logits[column] : Round<T>(-INFINITY);
    }
  }
  __syncthreads();
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kSharedThreads, 2) SharedRows(const LossRows r) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr int kStep = kSharedThreads * kSize;
  extern __shared__ uint4 shared[];
  T* const held = reinterpret_cast<T*>(shared);
  const int first = threadIdx.x * kSize;
  const Row row = RowOf(r.targets, r.rows - 1 - static_cast<int64_t>(blockIdx.x), r.classes);
  Hold<T, kAligned>(static_cast<const T*>(r.logits) + row.number * r.classes, r.classes, held);
  float top = -INFINITY;
#pragma unroll 4
  for (int column = first; column < r.classes; column += kStep) {
    top = MaxOf(cuda::LoadPack(held + column), top);
  }
  top = RowMax<kSharedThreads>(top);
  const ExpBelow<T> below_top(top);
  float sum = 0;
#pragma unroll 2
  for (int column = first; column < r.classes; column += kStep) {
    sum += SumOf(cuda::LoadPack(held + column), below_top);
  }
  const float lse = top + logf(RowSum<kSharedThreads>(sum));
  const float at_target = row.counts ? Load(held[row.target]) : 0.0f;
  bool correct = row.counts && at_target == top;
  if (correct) {
    bool earlier = false;
    for (int column = first; column < row.target; column += kStep) {
      earlier = earlier || Earlier(cuda::LoadPack(held + column), column, row.target, top);
    }
    correct = !RowAny<kSharedThreads>(earlier);
  }
  if (threadIdx.x == 0) StoreSums(r, row, lse, at_target, correct);
  if (r.dlogits == nullptr) return;
  T* const out = static_cast<T*>(r.dlogits) + row.number * r.classes;
  const ExpBelow<T> below_lse(lse);
  if constexpr (kAligned) {
#pragma unroll 2
    for (int column = first; column < r.classes; column += kStep) {
      Pack<T> d = {};
      if (row.counts) {
        d = GradOf(cuda::LoadPack(held + column), column, row.target, below_lse, 1.0f);
      }
      cuda::StorePack(out + column, d);
    }
  } else {
    for (int column = threadIdx.x; column < r.classes; column += kSharedThreads) {
      const float e = below_lse(Load(held[column])) - (column == row.target ? 1.0f : 0.0f);
      out[column] = Round<T>(row.counts ? e : 0.0f);
    }
  }
}

// Rows that fit nowhere, read three times.
constexpr int kReadThreads = 1024;

template <typename T>
__global__ void __launch_bounds__(kReadThreads) ReadRows(const LossRows r) {
  const Row row = RowOf(r.targets, r.rows - 1 - static_cast<int64_t>(blockIdx.x), r.classes);
  const T* const logits = static_cast<const T*>(r.logits) + row.number * r.classes;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < r.classes; i += kReadThreads) top = fmaxf(top, Load(logits[i]));
  top = RowMax<kReadThreads>(top);
  const ExpBelow<T> below_top(top);
  float sum = 0;
  for (int i = threadIdx.x; i < r.classes; i += kReadThreads) sum += below_top(Load(logits[i]));
  const float lse = top + logf(RowSum<kReadThreads>(sum));
  const float at_target = row.counts ? Load(logits[row.target]) : 0.0f;
  bool correct = row.counts && at_target == top;
  if (correct) {
    bool earlier = false;
    for (int i = threadIdx.x; i < row.target; i += kReadThreads) {
      earlier = earlier || Load(logits[i]) == top;
    }
    correct = !RowAny<kReadThreads>(earlier);
  }
  if (threadIdx.x == 0) StoreSums(r, row, lse, at_target, correct);
  if (r.dlogits == nullptr) return;
  __syncthreads();  // all have read what may be written over now
  T* const out = static_cast<T*>(r.dlogits) + row.number * r.classes;
  const ExpBelow<T> below_lse(lse);
  for (int i = threadIdx.x; i < r.classes; i += kReadThreads) {
    const float e = below_lse(Load(logits[i])) - (i == row.target ? 1.0f : 0.0f);
    out[i] = Round<T>(row.counts ? e : 0.0f);
  }
}

// Gradients where the sums are known.
template <typename T, int kThreads, bool kAligned>
__global__ void __launch_bounds__(8 * kWarp) GradOfRows(const GradRows r) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr int kRowsEach = 8 * kWarp / kThreads;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kRowsEach + threadIdx.x / kThreads;
  if (number >= r.rows) return;
  const Row row = RowOf(r.targets, number, r.classes);
  const T* const logits = static_cast<const T*>(r.logits) + number * r.classes;
  T* const out = static_cast<T*>(r.dlogits) + number * r.classes;
  const ExpBelow<T> below_lse(r.lse[number]);
  const float scale = *r.dloss;
  for (int column = threadIdx.x % kThreads * kSize; column < r.classes;
       column += kThreads * kSize) {
    Pack<T> d = {};
    if (row.counts) {
      d = GradOf(PackOf<T, kAligned>(logits, column, r.classes), column, row.target, below_lse,
                 scale);
    }
    StoreTo<T, kAligned>(out, column, r.classes, d);
  }
}

constexpr int kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    SumRows(const RowSums* sums, int64_t rows, float* loss, float* count, float* correct) {
  double l = 0;
  float n = 0, c = 0;  // whole numbers below 2^24 a thread
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < rows; i += kSumThreads) {
    const RowSums row = sums[i];
    l += static_cast<double>(row.loss);
    n += row.count;
    c += row.correct;
  }
  l = cuda::BlockSum<kSumThreads>(l);
  const double all = cuda::BlockSum<kSumThreads>(static_cast<double>(n));
  const double right = cuda::BlockSum<kSumThreads>(static_cast<double>(c));
  if (threadIdx.x != 0) return;
  *loss = static_cast<float>(l);
  *count = static_cast<float>(all);
  *correct = static_cast<float>(right);
}

int64_t SharedBytes(DType dtype, int classes) {
  return CeilDiv(classes * static_cast<int64_t>(SizeOf(dtype)), 16) * 16;
}

template <typename T, bool kAligned>
void LaunchTyped(const LossRows& r, cudaStream_t stream) {
  const int64_t packs = CeilDiv(r.classes, Pack<T>::kSize);
  const auto rows = static_cast<unsigned>(r.rows);
  const auto warps = static_cast<unsigned>(CeilDiv(r.rows, 8));
  const int64_t shared = SharedBytes(r.dtype, r.classes);
  if (packs <= kWarp) {
    HeldRows<T, kWarp, 1, kAligned><<<warps, 8 * kWarp, 0, stream>>>(r);
  } else if (packs <= 4 * kWarp) {
    HeldRows<T, kWarp, 4, kAligned><<<warps, 8 * kWarp, 0, stream>>>(r);
  } else if (kAligned && packs <= 4 * 256) {
    HeldRows<T, 256, 4, true><<<rows, 256, 0, stream>>>(r);
  } else if (shared <= kMostShared) {
    SharedRows<T, kAligned><<<rows, kSharedThreads, static_cast<size_t>(shared), stream>>>(r);
  } else {
    ReadRows<T><<<rows, kReadThreads, 0, stream>>>(r);
  }
}

template <typename T, bool kAligned>
void LaunchTyped(const GradRows& r, cudaStream_t stream) {
  if (CeilDiv(r.classes, Pack<T>::kSize) <= 2 * kWarp) {
    const auto blocks = static_cast<unsigned>(CeilDiv(r.rows, 8));
    GradOfRows<T, kWarp, kAligned><<<blocks, 8 * kWarp, 0, stream>>>(r);
  } else {
    GradOfRows<T, 8 * kWarp, kAligned><<<static_cast<unsigned>(r.rows), 8 * kWarp, 0, stream>>>(r);
  }
}

template <typename R>
int LaunchAny(const R& r, cudaStream_t stream) {
  if (r.rows == 0) return 0;
  const bool aligned = r.classes * static_cast<int64_t>(SizeOf(r.dtype)) % 16 == 0 &&
                       cuda::IsAligned(r.logits) && cuda::IsAligned(r.dlogits);
  if (r.dtype == DType::kBF16) {
    aligned ? LaunchTyped<bf16, true>(r, stream) : LaunchTyped<bf16, false>(r, stream);
  } else {
    aligned ? LaunchTyped<float, true>(r, stream) : LaunchTyped<float, false>(r, stream);
  }
  return cuda::LaunchError();
}

template <typename Kernel>
int AllowShared(Kernel* kernel) {
  return static_cast<int>(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
}

}  // namespace

int PrepareLossRows(DType dtype, int classes) {
  const int64_t shared = SharedBytes(dtype, classes);
  if (shared <= 48 * 1024 || shared > kMostShared) return 0;
  if (dtype == DType::kBF16) {
    const int error = AllowShared(SharedRows<bf16, true>);
    return error != 0 ? error : AllowShared(SharedRows<bf16, false>);
  }
  const int error = AllowShared(SharedRows<float, true>);
  return error != 0 ? error : AllowShared(SharedRows<float, false>);
}

int LaunchLossRows(const LossRows& rows, cudaStream_t stream) { return LaunchAny(rows, stream); }
int LaunchGradRows(const GradRows& rows, cudaStream_t stream) { return LaunchAny(rows, stream); }

int LaunchRowSums(const RowSums* sums, int64_t rows, float* loss, float* count, float* correct,
                  cudaStream_t stream) {
  SumRows<<<1, kSumThreads, 0, stream>>>(sums, rows, loss, count, correct);
  return cuda::LaunchError();
}

}  // namespace weft
