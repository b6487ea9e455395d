// Losses on CUDA. A row of logits is held in registers by a warp, or by a block, read once; its
// gradient may be written over it. Rows that do not fit, or not on 16 bytes, are read three times.
// Per-row results meet in one block, in a fixed order.
//
// linear_cross_entropy: rows in chunks. Of a chunk the logits by a product, then loss and gradient
// in place, then dx and the chunk's share of dw by two more; whole logits never exist.
#include <algorithm>
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/lt_product.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::LtProduct;
using cuda::Pack;
using cuda::ProductSpec;
using cuda::StreamOf;

// What one row adds.
struct RowSums {
  float loss, count, correct;
};

struct Rows {
  const void* logits;
  const int32_t* targets;
  float* lse;     // [rows]; null: nobody asks
  void* dlogits;  // may be the logits; null: no gradient
  RowSums* sums;  // [rows]
  int64_t rows;
  int classes;
};

// The greatest value, its first place, and the sum of exponentials below it.
struct Top {
  float value;
  int at;
};
__device__ __forceinline__ Top Better(Top a, Top b) {
  // A NaN is greatest, so that it reaches the sums.
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  if (nan_a || nan_b) return nan_a ? a : b;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.at <= b.at ? a : b;
}
__device__ __forceinline__ Top WarpTop(Top top) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Top other = {__shfl_xor_sync(~0u, top.value, offset),
                       __shfl_xor_sync(~0u, top.at, offset)};
    top = Better(top, other);
  }
  return top;
}

// Over the kThreads threads of a row; all get the result.
template <int kThreads>
__device__ __forceinline__ Top RowTop(Top top) {
  top = WarpTop(top);
  if constexpr (kThreads > kWarp) {
    __shared__ Top partial[kThreads / kWarp];
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = top;
    __syncthreads();
    top = partial[0];
    for (int i = 1; i < kThreads / kWarp; ++i) top = Better(top, partial[i]);
  }
  return top;
}
template <int kThreads>
__device__ __forceinline__ float RowSum(float sum) {
  if constexpr (kThreads > kWarp) {
    return cuda::BlockSum<kThreads>(sum);
  } else {
    return cuda::WarpSum(sum);
  }
}

__device__ __forceinline__ void StoreRow(const Rows& r, int64_t row, int target, bool counts,
                                         const Top& top, float lse, float at_target) {
  if (r.lse != nullptr) r.lse[row] = lse;
  r.sums[row] =
      counts ? RowSums{lse - at_target, 1, top.at == target ? 1.0f : 0.0f} : RowSums{0, 0, 0};
}

// kThreads a row; kWarp of them: eight rows a block.
template <typename T, int kThreads, int kPacks>
__global__ void __launch_bounds__(kThreads == kWarp ? 8 * kWarp : kThreads) HeldRows(const Rows r) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr int kRowsEach = kThreads == kWarp ? 8 : 1;
  const int thread = threadIdx.x % kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsEach + threadIdx.x / kThreads;
  if (row >= r.rows) return;
  const T* const logits = static_cast<const T*>(r.logits) + row * r.classes;
  Pack<T> held[kPacks];
  Top top = {-INFINITY, 0};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * kThreads + thread) * kSize;
    if (column >= r.classes) continue;
    held[p] = cuda::LoadPack(logits + column);
#pragma unroll
    for (int i = 0; i < kSize; ++i) top = Better(top, {cuda::Load(held[p].value[i]), column + i});
  }
  top = RowTop<kThreads>(top);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((p * kThreads + thread) * kSize >= r.classes) continue;
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += expf(cuda::Load(held[p].value[i]) - top.value);
  }
  const float lse = top.value + logf(RowSum<kThreads>(sum));
  const int target = r.targets[row];
  const bool counts = target >= 0 && target < r.classes;
  // Read before anybody writes over it.
  const float at_target = counts && thread == 0 ? cuda::Load(logits[target]) : 0.0f;
  if (thread == 0) StoreRow(r, row, target, counts, top, lse, at_target);
  if (r.dlogits == nullptr) return;
  if constexpr (kThreads > kWarp) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  T* const out = static_cast<T*>(r.dlogits) + row * r.classes;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = (p * kThreads + thread) * kSize;
    if (column >= r.classes) continue;
    Pack<T> d;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float e = expf(cuda::Load(held[p].value[i]) - lse) - (column + i == target ? 1 : 0);
      d.value[i] = cuda::Round<T>(counts ? e : 0.0f);
    }
    cuda::StorePack(out + column, d);
  }
}

constexpr int kBlock = 256;

template <typename T>
__global__ void __launch_bounds__(kBlock) ReadRows(const Rows r) {
  const int64_t row = blockIdx.x;
  const T* const logits = static_cast<const T*>(r.logits) + row * r.classes;
  Top top = {-INFINITY, 0};
  for (int i = threadIdx.x; i < r.classes; i += kBlock) {
    top = Better(top, {cuda::Load(logits[i]), i});
  }
  top = RowTop<kBlock>(top);
  float sum = 0;
  for (int i = threadIdx.x; i < r.classes; i += kBlock) {
    sum += expf(cuda::Load(logits[i]) - top.value);
  }
  const float lse = top.value + logf(RowSum<kBlock>(sum));
  const int target = r.targets[row];
  const bool counts = target >= 0 && target < r.classes;
  const float at_target = counts && threadIdx.x == 0 ? cuda::Load(logits[target]) : 0.0f;
  if (threadIdx.x == 0) StoreRow(r, row, target, counts, top, lse, at_target);
  if (r.dlogits == nullptr) return;
  __syncthreads();
  T* const out = static_cast<T*>(r.dlogits) + row * r.classes;
  for (int i = threadIdx.x; i < r.classes; i += kBlock) {
    const float e = expf(cuda::Load(logits[i]) - lse) - (i == target ? 1 : 0);
    out[i] = cuda::Round<T>(counts ? e : 0.0f);
  }
}

constexpr int kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    SumRows(const RowSums* sums, int64_t rows, float* loss, float* count, float* correct) {
  double l = 0;
  float n = 0, c = 0;  // whole numbers below 2^24 a thread
  for (int64_t i = threadIdx.x; i < rows; i += kSumThreads) {
    l += static_cast<double>(sums[i].loss);
    n += sums[i].count;
    c += sums[i].correct;
  }
  l = cuda::BlockSum<kSumThreads>(l);
  const double all = cuda::BlockSum<kSumThreads>(static_cast<double>(n));
  const double right = cuda::BlockSum<kSumThreads>(static_cast<double>(c));
  if (threadIdx.x != 0) return;
  *loss = static_cast<float>(l);
  *count = static_cast<float>(all);
  *correct = static_cast<float>(right);
}

template <typename T>
void LaunchRows(const Rows& r, cudaStream_t stream) {
  if (r.rows == 0) return;
  constexpr int kSize = Pack<T>::kSize;
  const bool aligned = r.classes % kSize == 0 && cuda::IsAligned(r.logits) &&
                       (r.dlogits == nullptr || cuda::IsAligned(r.dlogits));
  const int packs = r.classes / kSize;
  const auto blocks = static_cast<unsigned>(r.rows);
  const auto warps = static_cast<unsigned>(CeilDiv(r.rows, 8));
  if (!aligned || packs > 8 * 1024) {
    ReadRows<T><<<blocks, kBlock, 0, stream>>>(r);
  } else if (packs <= kWarp) {
    HeldRows<T, kWarp, 1><<<warps, 8 * kWarp, 0, stream>>>(r);
  } else if (packs <= 4 * kWarp) {
    HeldRows<T, kWarp, 4><<<warps, 8 * kWarp, 0, stream>>>(r);
  } else if (packs <= 4 * 256) {
    HeldRows<T, 256, 4><<<blocks, 256, 0, stream>>>(r);
  } else {
    HeldRows<T, 1024, 8><<<blocks, 1024, 0, stream>>>(r);
  }
}

int LaunchSums(const RowSums* sums, int64_t rows, const KernelArgs& args) {
  SumRows<<<1, kSumThreads, 0, StreamOf(args)>>>(sums, rows, args.out[0].as<float>(),
                                                 args.out[1].as<float>(), args.out[2].as<float>());
  return cuda::LaunchError();
}

// ---- cross_entropy and its gradient.

struct LossState {
  int64_t rows = 0;
  int classes = 0;
};

Bound BindLoss(const std::string&, const BindArgs& args) {
  if (args.in[0].shape.dim(-1) >= INT32_MAX) return {.error = "more than 2^31 - 2 classes"};
  auto state = std::make_shared<LossState>();
  state->rows = args.in[1].elements();
  state->classes = static_cast<int>(args.in[0].shape.dim(-1));
  return {std::move(state), state->rows * static_cast<int64_t>(sizeof(RowSums)), ""};
}

int LaunchLoss(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  const Rows r = {args.in[0].data, args.in[1].as<const int32_t>(),      args.out[3].as<float>(),
                  nullptr,         static_cast<RowSums*>(args.scratch), s.rows,
                  s.classes};
  if (args.in[0].dtype == DType::kBF16) {
    LaunchRows<bf16>(r, StreamOf(args));
  } else {
    LaunchRows<float>(r, StreamOf(args));
  }
  return LaunchSums(r.sums, s.rows, args);
}

template <typename T>
__global__ void __launch_bounds__(kBlock)
    GradKernel(const T* logits, const int32_t* targets, const float* lse, const float* dloss,
               T* out, int classes) {
  const int64_t row = blockIdx.x;
  const int target = targets[row];
  const bool counts = target >= 0 && target < classes;
  const float scale = *dloss, l = lse[row];
  for (int i = threadIdx.x; i < classes; i += kBlock) {
    const int64_t at = row * classes + i;
    const float e = expf(cuda::Load(logits[at]) - l) - (i == target ? 1 : 0);
    out[at] = cuda::Round<T>(counts ? e * scale : 0.0f);
  }
}

int LaunchLossGrad(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  if (s.rows == 0) return 0;
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    GradKernel<T><<<static_cast<unsigned>(s.rows), kBlock, 0, StreamOf(args)>>>(
        args.in[0].as<const T>(), args.in[1].as<const int32_t>(), args.in[2].as<const float>(),
        args.in[3].as<const float>(), args.out[0].as<T>(), s.classes);
  };
  if (args.in[0].dtype == DType::kBF16) {
    launch(bf16{});
  } else {
    launch(float{});
  }
  return cuda::LaunchError();
}

// ---- linear_cross_entropy: x, w, targets -> loss_sum, count, correct, dx, dw.

constexpr int64_t kChunkBytes = int64_t{512} << 20;  // of logits
constexpr int64_t kChunkMultiple = 256;              // rows

struct Products {
  std::shared_ptr<const LtProduct> logits, dx, dw_first, dw_more;
};

struct HeadState {
  int64_t rows = 0, width = 0, chunk = 0;
  int classes = 0;
  bool transpose_w = false;
  DType dtype = DType::kF32;
  Products full, last;  // of whole chunks, and of the last one where it is shorter
  // Bytes into scratch.
  int64_t logits = 0, workspace = 0;
};

// The products of a chunk of `rows`; an error leaves `error` set.
Products ProductsOf(const HeadState& s, int64_t rows, bool tf32, int64_t* workspace,
                    std::string* error) {
  const auto make = [&](ProductSpec spec) {
    spec.in = s.dtype;
    spec.tf32 = tf32;
    auto product = LtProduct::Make(spec, "default", error);
    if (product != nullptr) *workspace = std::max(*workspace, product->workspace_bytes());
    return product;
  };
  ProductSpec logits{.m = rows, .n = s.classes, .k = s.width, .transpose_b = s.transpose_w};
  ProductSpec dx{.m = rows, .n = s.width, .k = s.classes, .transpose_b = !s.transpose_w};
  ProductSpec dw{.m = s.transpose_w ? s.classes : s.width,
                 .n = s.transpose_w ? s.width : s.classes,
                 .k = rows,
                 .transpose_a = true};
  logits.out = dx.out = s.dtype;
  dw.out = DType::kF32;
  Products p;
  p.logits = make(logits);
  p.dx = make(dx);
  p.dw_first = make(dw);
  dw.accumulates = true;
  p.dw_more = make(dw);
  return p;
}

int64_t OnBoundary(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

Bound BindHead(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<HeadState>();
  s->rows = args.in[2].elements();
  s->width = args.in[0].shape.dim(-1);
  s->transpose_w = args.attrs->GetBool("transpose_w");
  s->classes = static_cast<int>(args.in[1].shape.dim(s->transpose_w ? 0 : 1));
  s->dtype = args.in[0].dtype;
  const int64_t row_bytes = s->classes * static_cast<int64_t>(SizeOf(s->dtype));
  const int64_t fitting = kChunkBytes / row_bytes / kChunkMultiple * kChunkMultiple;
  s->chunk = std::min(s->rows, std::max(kChunkMultiple, fitting));
  s->logits = OnBoundary(s->rows * static_cast<int64_t>(sizeof(RowSums)));
  s->workspace = s->logits + OnBoundary(s->chunk * row_bytes);
  Bound bound;
  if (s->rows > 0 && s->width > 0) {
    const bool tf32 = args.attrs->GetBool("tf32");
    int64_t workspace = 0;
    std::string error;
    s->full = ProductsOf(*s, s->chunk, tf32, &workspace, &error);
    if (error.empty() && s->rows % s->chunk != 0) {
      s->last = ProductsOf(*s, s->rows % s->chunk, tf32, &workspace, &error);
    }
    if (!error.empty()) return {.error = error};
    bound.scratch_bytes = s->workspace + workspace;
  } else {
    bound.scratch_bytes = s->workspace;
  }
  bound.state = std::move(s);
  return bound;
}

int LaunchHead(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const HeadState*>(state);
  const cudaStream_t stream = StreamOf(args);
  auto* const scratch = static_cast<char*>(args.scratch);
  auto* const sums = reinterpret_cast<RowSums*>(scratch);
  const int64_t size = static_cast<int64_t>(SizeOf(s.dtype));
  if (s.rows == 0 || s.width == 0) {
    const auto dw = static_cast<size_t>(args.out[4].elements()) * sizeof(float);
    cudaMemsetAsync(args.out[4].data, 0, dw, stream);
  }
  for (int64_t row = 0; row < s.rows; row += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.rows - row);
    const Products& p = rows == s.chunk ? s.full : s.last;
    char* const x = static_cast<char*>(args.in[0].data) + row * s.width * size;
    char* const dx = static_cast<char*>(args.out[3].data) + row * s.width * size;
    void* const logits = scratch + s.logits;
    void* const workspace = scratch + s.workspace;
    const auto run = [&](const LtProduct* product, const void* a, const void* b, void* c) {
      if (product == nullptr) return 0;
      cuda::ProductOperands o;
      o.a = a;
      o.b = b;
      o.c = c;
      o.workspace = workspace;
      return product->Launch(o, stream);
    };
    if (s.width == 0) {
      cudaMemsetAsync(logits, 0, static_cast<size_t>(rows * s.classes * size), stream);
    }
    if (const int error = run(p.logits.get(), x, args.in[1].data, logits)) return error;
    const Rows r = {
        logits, args.in[2].as<const int32_t>() + row, nullptr, logits, sums + row, rows, s.classes};
    if (s.dtype == DType::kBF16) {
      LaunchRows<bf16>(r, stream);
    } else {
      LaunchRows<float>(r, stream);
    }
    if (const int error = run(p.dx.get(), logits, args.in[1].data, dx)) return error;
    const LtProduct* dw = row == 0 ? p.dw_first.get() : p.dw_more.get();
    const void* left = s.transpose_w ? logits : x;
    const void* right = s.transpose_w ? x : logits;
    if (const int error = run(dw, left, right, args.out[4].data)) return error;
  }
  return LaunchSums(sums, s.rows, args);
}

}  // namespace

void RegisterLossCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("cross_entropy", kCuda, {nullptr, BindLoss, LaunchLoss, true});
  table->Add("cross_entropy_grad", kCuda, {nullptr, BindLoss, LaunchLossGrad, true});
  table->Add("linear_cross_entropy", kCuda, {nullptr, BindHead, LaunchHead, true});
}

}  // namespace weft
