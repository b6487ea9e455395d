// Normalizations on CUDA.
//   Rows that fit a warp's registers: one read of x (and r), sums in the warp, one write. Backward
//     reads dy and x once: each warp keeps its share of the weights' gradients in registers over a
//     fixed set of rows, warps of a block meet in shared memory, blocks in a second launch.
//   Other widths: a block a row, which it reads again from the cache.
// Which rows a block takes follows from the shape alone, so the bits do too.
#include <algorithm>
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::Pack;
using cuda::StreamOf;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

struct Forward {
  const void *x, *r;
  const float *weight, *bias;
  void *y, *s;
  float *mean, *rstd;
  int64_t rows;
  int width;
  float eps;
};

// One row's packs of a lane: pack p starts at column (p * kWarp + lane) * kSize.
template <typename T>
__device__ __forceinline__ int ColumnOf(int pack, int lane) {
  return (pack * kWarp + lane) * Pack<T>::kSize;
}

template <typename T, int kPacks, bool kMean, bool kAdd>
__global__ void __launch_bounds__(kThreads) ForwardWarp(const Forward f) {
  constexpr int kSize = Pack<T>::kSize;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= f.rows) return;
  const T* const x = static_cast<const T*>(f.x) + row * f.width;
  float value[kPacks][kSize];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = ColumnOf<T>(p, lane);
    if (column >= f.width) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) value[p][i] = 0;
      continue;
    }
    const Pack<T> px = cuda::LoadPack(x + column);
    if constexpr (kAdd) {
      const Pack<T> pr = cuda::LoadPack(static_cast<const T*>(f.r) + row * f.width + column);
      Pack<T> ps;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        ps.value[i] = cuda::Round<T>(cuda::Load(px.value[i]) + cuda::Load(pr.value[i]));
        value[p][i] = cuda::Load(ps.value[i]);
      }
      cuda::StorePack(static_cast<T*>(f.s) + row * f.width + column, ps);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) value[p][i] = cuda::Load(px.value[i]);
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += value[p][i];
  }
  const float mean = kMean ? cuda::WarpSum(sum) / f.width : 0.0f;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ColumnOf<T>(p, lane) >= f.width) continue;
#pragma unroll
    for (int i = 0; i < kSize; ++i) squares += (value[p][i] - mean) * (value[p][i] - mean);
  }
  const float rstd = 1.0f / sqrtf(cuda::WarpSum(squares) / f.width + f.eps);
  if (lane == 0) {
    if constexpr (kMean) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = ColumnOf<T>(p, lane);
    if (column >= f.width) continue;
    Pack<T> py;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      float y = (value[p][i] - mean) * rstd * f.weight[column + i];
      if (kMean && f.bias != nullptr) y += f.bias[column + i];
      py.value[i] = cuda::Round<T>(y);
    }
    cuda::StorePack(static_cast<T*>(f.y) + row * f.width + column, py);
  }
}

template <typename T, bool kMean, bool kAdd>
__global__ void __launch_bounds__(kThreads) ForwardBlock(const Forward f) {
  const int64_t row = blockIdx.x;
  const T* const x = static_cast<const T*>(f.x) + row * f.width;
  const T* const r = static_cast<const T*>(f.r) + row * f.width;
  T* const s = static_cast<T*>(f.s) + row * f.width;
  T* const y = static_cast<T*>(f.y) + row * f.width;
  // What is normalized: as it is stored, also by this thread a moment ago.
  const T* const from = kAdd ? s : x;
  float sum = 0;
  for (int i = threadIdx.x; i < f.width; i += kThreads) {
    if constexpr (kAdd) s[i] = cuda::Round<T>(cuda::Load(x[i]) + cuda::Load(r[i]));
    sum += cuda::Load(from[i]);
  }
  const float mean = kMean ? cuda::BlockSum<kThreads>(sum) / f.width : 0.0f;
  float squares = 0;
  for (int i = threadIdx.x; i < f.width; i += kThreads) {
    const float d = cuda::Load(from[i]) - mean;
    squares += d * d;
  }
  const float rstd = 1.0f / sqrtf(cuda::BlockSum<kThreads>(squares) / f.width + f.eps);
  if (threadIdx.x == 0) {
    if constexpr (kMean) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
  for (int i = threadIdx.x; i < f.width; i += kThreads) {
    float v = (cuda::Load(from[i]) - mean) * rstd * f.weight[i];
    if (kMean && f.bias != nullptr) v += f.bias[i];
    y[i] = cuda::Round<T>(v);
  }
}

struct Backward {
  const void *dy, *x, *residual;
  const float *weight, *mean, *rstd;
  void* dx;
  float* partial;  // [blocks][kSums][width]
  int64_t rows;
  int width;
};

// With g = dy w and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)); rms: no mean(g).
template <typename T, int kPacks, bool kMean, bool kResidual>
__global__ void __launch_bounds__(kThreads) BackwardWarp(const Backward b) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ float shared[];  // [width]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float weight[kPacks][kSize], dweight[kPacks][kSize] = {}, dbias[kPacks][kSize] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int column = ColumnOf<T>(p, lane);
#pragma unroll
    for (int i = 0; i < kSize; ++i) weight[p][i] = column < b.width ? b.weight[column + i] : 0.0f;
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < b.rows;
       row += stride) {
    const int64_t base = row * b.width;
    const float mean = kMean ? b.mean[row] : 0.0f, rstd = b.rstd[row];
    float h[kPacks][kSize], g[kPacks][kSize];
    Pack<T> residual[kPacks];
    float sum_g = 0, sum_gh = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = ColumnOf<T>(p, lane);
      if (column >= b.width) continue;
      const Pack<T> px = cuda::LoadPack(static_cast<const T*>(b.x) + base + column);
      const Pack<T> pd = cuda::LoadPack(static_cast<const T*>(b.dy) + base + column);
      if constexpr (kResidual) {
        residual[p] = cuda::LoadPack(static_cast<const T*>(b.residual) + base + column);
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float dy = cuda::Load(pd.value[i]);
        h[p][i] = (cuda::Load(px.value[i]) - mean) * rstd;
        g[p][i] = dy * weight[p][i];
        sum_g += g[p][i];
        sum_gh += g[p][i] * h[p][i];
        dweight[p][i] += dy * h[p][i];
        if constexpr (kMean) dbias[p][i] += dy;
      }
    }
    const float mean_g = kMean ? cuda::WarpSum(sum_g) / b.width : 0.0f;
    const float mean_gh = cuda::WarpSum(sum_gh) / b.width;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = ColumnOf<T>(p, lane);
      if (column >= b.width) continue;
      Pack<T> dx;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        float d = rstd * (g[p][i] - mean_g - h[p][i] * mean_gh);
        if constexpr (kResidual) d += cuda::Load(residual[p].value[i]);
        dx.value[i] = cuda::Round<T>(d);
      }
      cuda::StorePack(static_cast<T*>(b.dx) + base + column, dx);
    }
  }
  // Warps add to shared memory one after the other.
#pragma unroll
  for (int sums = 0; sums < (kMean ? 2 : 1); ++sums) {
    for (int w = 0; w < kWarps; ++w) {
      __syncthreads();
      if (w != warp) continue;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int column = ColumnOf<T>(p, lane);
        if (column >= b.width) continue;
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const float own = sums == 0 ? dweight[p][i] : dbias[p][i];
          shared[column + i] = w == 0 ? own : shared[column + i] + own;
        }
      }
    }
    __syncthreads();
    float* const to =
        b.partial + (static_cast<int64_t>(blockIdx.x) * (kMean ? 2 : 1) + sums) * b.width;
    for (int i = threadIdx.x; i < b.width; i += kThreads) to[i] = shared[i];
  }
}

template <typename T, bool kMean>
__global__ void __launch_bounds__(kThreads) BackwardBlock(const Backward b) {
  const int64_t row = blockIdx.x, base = row * b.width;
  const T* const x = static_cast<const T*>(b.x) + base;
  const T* const dy = static_cast<const T*>(b.dy) + base;
  const float mean = kMean ? b.mean[row] : 0.0f, rstd = b.rstd[row];
  float sum_g = 0, sum_gh = 0;
  for (int i = threadIdx.x; i < b.width; i += kThreads) {
    const float g = cuda::Load(dy[i]) * b.weight[i];
    sum_g += g;
    sum_gh += g * ((cuda::Load(x[i]) - mean) * rstd);
  }
  const float mean_g = kMean ? cuda::BlockSum<kThreads>(sum_g) / b.width : 0.0f;
  const float mean_gh = cuda::BlockSum<kThreads>(sum_gh) / b.width;
  for (int i = threadIdx.x; i < b.width; i += kThreads) {
    const float g = cuda::Load(dy[i]) * b.weight[i];
    float d = rstd * (g - mean_g - (cuda::Load(x[i]) - mean) * rstd * mean_gh);
    if (b.residual != nullptr) d += cuda::Load(static_cast<const T*>(b.residual)[base + i]);
    static_cast<T*>(b.dx)[base + i] = cuda::Round<T>(d);
  }
}

// One column a thread, over block y's rows.
template <typename T, bool kMean>
__global__ void __launch_bounds__(kThreads) WeightsOfColumns(const Backward b, int64_t rows_each) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= b.width) return;
  const int64_t end = min(b.rows, (static_cast<int64_t>(blockIdx.y) + 1) * rows_each);
  float dweight = 0, dbias = 0;
  for (int64_t row = blockIdx.y * rows_each; row < end; ++row) {
    const int64_t at = row * b.width + column;
    const float dy = cuda::Load(static_cast<const T*>(b.dy)[at]);
    const float mean = kMean ? b.mean[row] : 0.0f;
    dweight += dy * ((cuda::Load(static_cast<const T*>(b.x)[at]) - mean) * b.rstd[row]);
    dbias += dy;
  }
  float* const to = b.partial + static_cast<int64_t>(blockIdx.y) * (kMean ? 2 : 1) * b.width;
  to[column] = dweight;
  if constexpr (kMean) to[b.width + column] = dbias;
}

// Partials of blocks -> sums: eight threads a column walk down side by side, then meet in order.
__global__ void __launch_bounds__(kThreads)
    JoinBlocks(const float* partial, float* dweight, float* dbias, int blocks, int width,
               int sums) {
  __shared__ float shared[kWarps][kWarp];
  const int across = threadIdx.x % kWarp, down = threadIdx.x / kWarp;
  const int i = static_cast<int>(blockIdx.x) * kWarp + across;  // of sums * width
  float sum = 0;
  if (i < sums * width) {
#pragma unroll 4
    for (int b = down; b < blocks; b += kWarps) {
      sum += partial[static_cast<int64_t>(b) * sums * width + i];
    }
  }
  shared[down][across] = sum;
  __syncthreads();
  if (down != 0 || i >= sums * width) return;
#pragma unroll
  for (int d = 1; d < kWarps; ++d) sum += shared[d][across];
  (i < width ? dweight[i] : dbias[i - width]) = sum;
}

// ---- What shapes choose.

struct NormState {
  int64_t rows = 0;
  int width = 0;
  float eps = 0;
  int packs = 0;   // a lane's, where a warp holds a row; 0: a block a row
  int blocks = 0;  // backward
  DType dtype = DType::kF32;
};

constexpr int kMostPacks = 8;
constexpr int kMostWidth = 1024;      // that a warp holds
constexpr int64_t kMostBlocks = 264;  // two for each processor of a large GPU

int PacksOf(DType dtype, int64_t width) {
  const int64_t size = 16 / static_cast<int64_t>(SizeOf(dtype));
  if (width % size != 0 || width > kMostWidth) return 0;
  const int64_t packs = CeilDiv(width, kWarp * size);
  for (int p = 1; p <= kMostPacks; p *= 2) {
    if (packs <= p) return p;
  }
  return 0;
}

std::shared_ptr<NormState> StateOf(const ArrayRef& x) {
  auto state = std::make_shared<NormState>();
  state->width = static_cast<int>(x.shape.dim(-1));
  state->rows = x.elements() / std::max<int64_t>(state->width, 1);
  state->dtype = x.dtype;
  state->packs = PacksOf(x.dtype, state->width);
  return state;
}

Bound BindForward(const std::string&, const BindArgs& args) {
  auto state = StateOf(args.in[0]);
  state->eps = static_cast<float>(args.attrs->GetFloat("eps", 1e-5));
  return {std::move(state), 0, ""};
}

// Calls body with the number of packs as a constant.
template <typename Body>
void WithPacks(int packs, Body&& body) {
  switch (packs) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    default:
      return body(std::integral_constant<int, 8>{});
  }
}

template <typename T, bool kMean, bool kAdd>
void ForwardOf(const NormState& s, const Forward& f, cudaStream_t stream) {
  bool aligned = s.packs > 0;
  for (const void* p : {f.x, static_cast<const void*>(f.y), kAdd ? f.r : f.x,
                        kAdd ? static_cast<const void*>(f.s) : f.x}) {
    aligned = aligned && cuda::IsAligned(p);
  }
  if (!aligned) {
    ForwardBlock<T, kMean, kAdd><<<static_cast<unsigned>(s.rows), kThreads, 0, stream>>>(f);
    return;
  }
  WithPacks(s.packs, [&](auto packs) {
    // Wider rows than a warp holds in this type do not come here.
    if constexpr (packs.value * kWarp * Pack<T>::kSize <= kMostWidth) {
      ForwardWarp<T, packs.value, kMean, kAdd>
          <<<static_cast<unsigned>(CeilDiv(s.rows, kWarps)), kThreads, 0, stream>>>(f);
    }
  });
}

// Operands in the order of the literals: x (r) weight (bias), y (s) (mean) rstd.
template <bool kMean, bool kAdd>
int LaunchForward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormState*>(state);
  if (s.rows == 0) return 0;
  constexpr int kWeight = kAdd ? 2 : 1;
  Forward f = {};
  f.x = args.in[0].data;
  f.r = kAdd ? args.in[1].data : nullptr;
  f.weight = args.in[kWeight].as<const float>();
  f.bias = args.in_count > kWeight + 1 ? args.in[kWeight + 1].as<const float>() : nullptr;
  f.y = args.out[0].data;
  f.s = kAdd ? args.out[1].data : nullptr;
  f.mean = kMean ? args.out[kAdd ? 2 : 1].as<float>() : nullptr;
  f.rstd = args.out[args.out_count - 1].as<float>();
  f.rows = s.rows;
  f.width = s.width;
  f.eps = s.eps;
  if (s.dtype == DType::kBF16) {
    ForwardOf<bf16, kMean, kAdd>(s, f, StreamOf(args));
  } else {
    ForwardOf<float, kMean, kAdd>(s, f, StreamOf(args));
  }
  return cuda::LaunchError();
}

template <bool kMean>
Bound BindBackward(const std::string&, const BindArgs& args) {
  auto state = StateOf(args.in[1]);
  state->blocks =
      static_cast<int>(std::clamp<int64_t>(CeilDiv(state->rows, kWarps), 1, kMostBlocks));
  const int64_t floats = int64_t{state->blocks} * state->width * (kMean ? 2 : 1);
  return {std::move(state), floats * static_cast<int64_t>(sizeof(float)), ""};
}

template <typename T, bool kMean>
void BackwardOf(const NormState& s, const Backward& b, cudaStream_t stream) {
  bool aligned = s.packs > 0;
  for (const void* p :
       {b.dy, b.x, static_cast<const void*>(b.dx), b.residual != nullptr ? b.residual : b.x}) {
    aligned = aligned && cuda::IsAligned(p);
  }
  const auto blocks = static_cast<unsigned>(s.blocks);
  if (!aligned) {
    if (s.rows > 0) {
      BackwardBlock<T, kMean><<<static_cast<unsigned>(s.rows), kThreads, 0, stream>>>(b);
    }
    const dim3 grid(static_cast<unsigned>(CeilDiv(s.width, kThreads)), blocks);
    WeightsOfColumns<T, kMean><<<grid, kThreads, 0, stream>>>(b, CeilDiv(s.rows, s.blocks));
    return;
  }
  WithPacks(s.packs, [&](auto packs) {
    if constexpr (packs.value * kWarp * Pack<T>::kSize <= kMostWidth) {
      const size_t shared = static_cast<size_t>(s.width) * sizeof(float);
      if (b.residual != nullptr) {
        BackwardWarp<T, packs.value, kMean, true><<<blocks, kThreads, shared, stream>>>(b);
      } else {
        BackwardWarp<T, packs.value, kMean, false><<<blocks, kThreads, shared, stream>>>(b);
      }
    }
  });
}

template <bool kMean>
int LaunchBackward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormState*>(state);
  if (s.width == 0) return 0;
  constexpr int kResidual = kMean ? 5 : 4;
  constexpr int kSums = kMean ? 2 : 1;
  Backward b = {};
  b.dy = args.in[0].data;
  b.x = args.in[1].data;
  b.weight = args.in[2].as<const float>();
  b.mean = kMean ? args.in[3].as<const float>() : nullptr;
  b.rstd = args.in[kResidual - 1].as<const float>();
  b.residual = args.in_count > kResidual ? args.in[kResidual].data : nullptr;
  b.dx = args.out[0].data;
  b.partial = static_cast<float*>(args.scratch);
  b.rows = s.rows;
  b.width = s.width;
  if (s.dtype == DType::kBF16) {
    BackwardOf<bf16, kMean>(s, b, StreamOf(args));
  } else {
    BackwardOf<float, kMean>(s, b, StreamOf(args));
  }
  JoinBlocks<<<static_cast<unsigned>(CeilDiv(int64_t{kSums} * s.width, kWarp)), kThreads, 0,
               StreamOf(args)>>>(b.partial, args.out[1].as<float>(),
                                 kMean ? args.out[2].as<float>() : nullptr, s.blocks, s.width,
                                 kSums);
  return cuda::LaunchError();
}

}  // namespace

void RegisterNormCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rms_norm", kCuda, {nullptr, BindForward, LaunchForward<false, false>, true});
  table->Add("layer_norm", kCuda, {nullptr, BindForward, LaunchForward<true, false>, true});
  table->Add("add_rms_norm", kCuda, {nullptr, BindForward, LaunchForward<false, true>, true});
  table->Add("add_layer_norm", kCuda, {nullptr, BindForward, LaunchForward<true, true>, true});
  table->Add("rms_norm_grad", kCuda, {nullptr, BindBackward<false>, LaunchBackward<false>, true});
  table->Add("layer_norm_grad", kCuda, {nullptr, BindBackward<true>, LaunchBackward<true>, true});
}

}  // namespace weft
