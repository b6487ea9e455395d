// Attention on CUDA for any length and head width up to 256, in f32 arithmetic, without ever
// storing scores (arXiv 2205.14135). Tiles of 32 queries and 32 keys lie in shared memory; a warp
// owns eight of one side, its lanes the 32 of the other for scores and the head's columns for sums.
//
// Backward computes probabilities again out of lse. One launch goes over keys, one over queries, so
// that every sum is in a fixed order. Rotation is applied when q and k are loaded and undone when
// their gradients are stored, with angles from a table that a small launch makes in double.
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
using cuda::StreamOf;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = 32;               // queries, and keys
constexpr int kOwned = kTile / kWarps;  // of a warp
constexpr int kMostWidth = 256;
constexpr float kLog2E = 1.44269504088896f;

// The geometry of one call.
struct Heads {
  int time, heads, width;
  bool causal;
  float scale;
  const float2* rotation;  // [time][width / 2] cosine, sine; null: none

  __device__ int64_t stride() const { return int64_t{3} * heads * width; }  // of packed rows
  __device__ int64_t hidden() const { return int64_t{heads} * width; }
};

__global__ void RotationKernel(float2* table, int time, int width, double base) {
  const int half = width / 2;
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= time * half) return;
  const double angle = (i / half) * pow(base, -2.0 * (i % half) / width);
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  table[i] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}

// Element `d` of row `t` of q or k, rotated.
template <typename T>
__device__ __forceinline__ float Rotated(const Heads& h, const T* row, int t, int d) {
  if (h.rotation == nullptr) return cuda::Load(row[d]);
  const int half = h.width / 2;
  const bool first = d < half;
  const float2 r = h.rotation[t * half + (first ? d : d - half)];
  const float own = cuda::Load(row[d]), other = cuda::Load(row[first ? d + half : d - half]);
  return first ? own * r.x - other * r.y : own * r.x + other * r.y;
}

// Rows [first, first + kTile) into shared memory, zeros past the end.
template <bool kRotate, typename T>
__device__ __forceinline__ void LoadTile(const Heads& h, const T* base, int64_t row_stride,
                                         int first, float* tile, int tile_stride) {
  for (int i = threadIdx.x; i < kTile * h.width; i += kThreads) {
    const int row = i / h.width, d = i % h.width, t = first + row;
    float value = 0;
    if (t < h.time) {
      const T* const at = base + t * row_stride;
      value = kRotate ? Rotated(h, at, t, d) : cuda::Load(at[d]);
    }
    tile[row * tile_stride + d] = value;
  }
}

__device__ __forceinline__ float Dot(const float* a, const float* b, int width) {
  float sum = 0;
#pragma unroll 8
  for (int d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

// Writes a warp's rows of sums [kOwned][columns], taking the rotation back where asked to; `stage`
// is kOwned * width floats of the warp.
template <bool kRotate, int kColumns, typename T>
__device__ __forceinline__ void StoreRows(const Heads& h, const float (&sums)[kOwned][kColumns],
                                          float factor, int first, T* base, int64_t row_stride,
                                          float* stage) {
  const int lane = threadIdx.x % kWarp;
  __syncwarp();
#pragma unroll
  for (int o = 0; o < kOwned; ++o) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = c * kWarp + lane;
      if (d < h.width) stage[o * h.width + d] = sums[o][c] * factor;
    }
  }
  __syncwarp();
  for (int o = 0; o < kOwned; ++o) {
    const int t = first + o;
    if (t >= h.time) return;
    for (int d = lane; d < h.width; d += kWarp) {
      float value = stage[o * h.width + d];
      if (kRotate && h.rotation != nullptr) {
        const int half = h.width / 2;
        const bool low = d < half;
        const float2 r = h.rotation[t * half + (low ? d : d - half)];
        const float other = stage[o * h.width + (low ? d + half : d - half)];
        value = low ? value * r.x + other * r.y : value * r.x - other * r.y;
      }
      base[t * row_stride + d] = cuda::Round<T>(value);
    }
  }
}

// Shared memory: queries or keys that a warp owns (broadcast), those that lanes own (padded, so
// that lanes read different banks), and the second operand of each sum.
struct Shared {
  float *owned, *owned_other, *lanes, *lanes_other;
  int stride;  // of the lanes' tiles
};
__device__ __forceinline__ Shared Carve(float* memory, int width) {
  Shared s;
  s.stride = width + 1;
  s.owned = memory;
  s.owned_other = s.owned + kTile * width;
  s.lanes = s.owned_other + kTile * width;
  s.lanes_other = s.lanes + kTile * s.stride;
  return s;
}
int64_t SharedBytes(int width) {
  return int64_t{kTile} * (4 * width + 2) * static_cast<int64_t>(sizeof(float));
}

// Block (query tile, head of an item).
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(__grid_constant__ const Heads h, const T* qkv, T* y, float* lse) {
  extern __shared__ float memory[];
  const Shared s = Carve(memory, h.width);
  const int item = static_cast<int>(blockIdx.y) / h.heads,
            head = static_cast<int>(blockIdx.y) % h.heads;
  const int first = static_cast<int>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const T* const q = qkv + item * h.time * h.stride() + head * h.width;
  const T *const k = q + h.hidden(), *const v = k + h.hidden();
  LoadTile<true>(h, q, h.stride(), first, s.owned, h.width);
  float sums[kOwned][kColumns] = {}, top[kOwned], total[kOwned];
#pragma unroll
  for (int o = 0; o < kOwned; ++o) {
    top[o] = -INFINITY;
    total[o] = 0;
  }
  const int end = h.causal ? min(h.time, first + kTile) : h.time;
  for (int begin = 0; begin < end; begin += kTile) {
    __syncthreads();
    LoadTile<true>(h, k, h.stride(), begin, s.lanes, s.stride);
    LoadTile<false>(h, v, h.stride(), begin, s.lanes_other, s.stride);
    __syncthreads();
    const int key = begin + lane;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const int row = warp * kOwned + o, query = first + row;
      float score = Dot(s.owned + row * h.width, s.lanes + lane * s.stride, h.width) * h.scale;
      if (key >= h.time || (h.causal && key > query)) score = -INFINITY;
      const float greatest = fmaxf(top[o], cuda::WarpMax(score));
      // Rows past the end, and nothing seen yet.
      const float base = greatest == -INFINITY ? 0.0f : greatest;
      const float p = exp2f((score - base) * kLog2E);
      const float keep = exp2f((top[o] - base) * kLog2E);
      top[o] = greatest;
      total[o] = total[o] * keep + cuda::WarpSum(p);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sums[o][c] *= keep;
#pragma unroll 4
      for (int j = 0; j < kTile; ++j) {
        const float weight = __shfl_sync(~0u, p, j);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int d = c * kWarp + lane;
          if (d < h.width) sums[o][c] += weight * s.lanes_other[j * s.stride + d];
        }
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kOwned; ++o) {
    const float inverse = total[o] > 0 ? 1.0f / total[o] : 0.0f;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[o][c] *= inverse;
    const int query = first + warp * kOwned + o;
    if (lane == 0 && query < h.time) {
      lse[static_cast<int64_t>(blockIdx.y) * h.time + query] = top[o] + logf(total[o]);
    }
  }
  __syncthreads();
  StoreRows<false>(h, sums, 1.0f, first + warp * kOwned,
                   y + item * h.time * h.hidden() + head * h.width, h.hidden(),
                   s.owned + warp * kOwned * h.width);
}

// delta = sum of dy y over a head's columns: a warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    DeltaKernel(__grid_constant__ const Heads h, const T* dy, const T* y, float* delta,
                int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= rows) return;
  // Rows are (item, head, time) as in lse.
  const int64_t t = row % h.time, head = row / h.time % h.heads, item = row / h.time / h.heads;
  const int64_t at = (item * h.time + t) * h.hidden() + head * h.width;
  float sum = 0;
  for (int d = threadIdx.x % kWarp; d < h.width; d += kWarp) {
    sum += cuda::Load(dy[at + d]) * cuda::Load(y[at + d]);
  }
  sum = cuda::WarpSum(sum);
  if (threadIdx.x % kWarp == 0) delta[row] = sum;
}

// Block (tile, head of an item). kKeys: warps own keys and sum dk and dv over queries; else they
// own queries and sum dq over keys.
template <typename T, int kColumns, bool kKeys>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(__grid_constant__ const Heads h, const T* dy, const T* qkv, const float* lse,
                   const float* delta, T* dqkv) {
  extern __shared__ float memory[];
  const Shared s = Carve(memory, h.width);
  const int item = static_cast<int>(blockIdx.y) / h.heads,
            head = static_cast<int>(blockIdx.y) % h.heads;
  const int first = static_cast<int>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t packed = item * h.time * h.stride() + head * h.width;
  const T *const q = qkv + packed, *const k = q + h.hidden(), *const v = k + h.hidden();
  const T* const dyh = dy + item * h.time * h.hidden() + head * h.width;
  const float* const lse_row = lse + static_cast<int64_t>(blockIdx.y) * h.time;
  const float* const delta_row = delta + static_cast<int64_t>(blockIdx.y) * h.time;
  LoadTile<true>(h, kKeys ? k : q, h.stride(), first, s.owned, h.width);
  if constexpr (kKeys) {
    LoadTile<false>(h, v, h.stride(), first, s.owned_other, h.width);
  } else {
    LoadTile<false>(h, dyh, h.hidden(), first, s.owned_other, h.width);
  }
  float dk[kOwned][kColumns] = {}, dv[kOwned][kColumns] = {};  // dk is dq where queries are owned
  const int begin0 = kKeys && h.causal ? first / kTile * kTile : 0;
  const int end = !kKeys && h.causal ? min(h.time, first + kTile) : h.time;
  for (int begin = begin0; begin < end; begin += kTile) {
    __syncthreads();
    LoadTile<true>(h, kKeys ? q : k, h.stride(), begin, s.lanes, s.stride);
    if constexpr (kKeys) {
      LoadTile<false>(h, dyh, h.hidden(), begin, s.lanes_other, s.stride);
    } else {
      LoadTile<false>(h, v, h.stride(), begin, s.lanes_other, s.stride);
    }
    __syncthreads();
    const int mine = begin + lane;
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const int row = warp * kOwned + o, owned = first + row;
      const int query = kKeys ? mine : owned, key = kKeys ? owned : mine;
      const bool seen = query < h.time && key < h.time && (!h.causal || key <= query);
      float p = 0, ds = 0;
      // All lanes compute, since the products are done together.
      const float score =
          Dot(s.owned + row * h.width, s.lanes + lane * s.stride, h.width) * h.scale;
      const float dp = Dot(s.owned_other + row * h.width, s.lanes_other + lane * s.stride, h.width);
      if (seen) {
        p = exp2f((score - lse_row[query]) * kLog2E);
        ds = p * (dp - delta_row[query]);
      }
#pragma unroll 4
      for (int j = 0; j < kTile; ++j) {
        const float ds_j = __shfl_sync(~0u, ds, j);
        const float p_j = kKeys ? __shfl_sync(~0u, p, j) : 0.0f;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int d = c * kWarp + lane;
          if (d >= h.width) continue;
          dk[o][c] += ds_j * s.lanes[j * s.stride + d];
          if constexpr (kKeys) dv[o][c] += p_j * s.lanes_other[j * s.stride + d];
        }
      }
    }
  }
  __syncthreads();
  float* const stage = s.owned + warp * kOwned * h.width;
  T* const to = dqkv + packed + (kKeys ? h.hidden() : 0);
  StoreRows<true>(h, dk, h.scale, first + warp * kOwned, to, h.stride(), stage);
  if constexpr (kKeys) {
    StoreRows<false>(h, dv, 1.0f, first + warp * kOwned, to + h.hidden(), h.stride(), stage);
  }
}

// Element i of the packed operand; v passes.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RotaryKernel(__grid_constant__ const Heads h, const T* in, T* out, bool inverse,
                 int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t at = i % h.stride();
  if (at >= 2 * h.hidden()) {
    out[i] = in[i];
    return;
  }
  const int half = h.width / 2, d = static_cast<int>(at % h.width);
  const int t = static_cast<int>(i / h.stride() % h.time);
  const bool first = d < half;
  const float2 r = h.rotation[t * half + (first ? d : d - half)];
  const float sine = inverse ? -r.y : r.y;
  const float own = cuda::Load(in[i]), other = cuda::Load(in[first ? i + half : i - half]);
  out[i] = cuda::Round<T>(first ? own * r.x - other * sine : own * r.x + other * sine);
}

// ---- What shapes choose.

struct AttentionState {
  int64_t batch = 0;
  Heads heads = {};
  double base = 0;
  bool inverse = false;
  int64_t delta = 0;  // bytes into scratch
};

Bound BindShape(const Shape& qkv, const Attrs& attrs, double base, bool backward) {
  auto s = std::make_shared<AttentionState>();
  s->batch = qkv.dim(0);
  const int64_t heads = attrs.GetInt("heads"), width = qkv.dim(2) / (3 * heads);
  if (qkv.dim(1) > INT32_MAX / width || s->batch * heads > 65535) {
    return {.error = "more than 65535 heads in a batch, or too long a context"};
  }
  s->heads.time = static_cast<int>(qkv.dim(1));
  s->heads.heads = static_cast<int>(heads);
  s->heads.width = static_cast<int>(width);
  s->heads.causal = attrs.GetBool("causal");
  s->heads.scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(width)));
  s->base = base;
  s->inverse = attrs.GetBool("inverse");
  Bound bound;
  if (base != 0) {
    bound.scratch_bytes =
        CeilDiv(qkv.dim(1) * (width / 2) * static_cast<int64_t>(sizeof(float2)), 256) * 256;
  }
  s->delta = bound.scratch_bytes;
  if (backward) {
    bound.scratch_bytes += s->batch * heads * qkv.dim(1) * static_cast<int64_t>(sizeof(float));
  }
  bound.state = std::move(s);
  return bound;
}

Bound BindAttention(const std::string&, const BindArgs& args) {
  Bound bound =
      BindShape(args.in[0].shape, *args.attrs, args.attrs->GetFloat("rotary_base"), false);
  if (bound.error.empty() &&
      static_cast<const AttentionState*>(bound.state.get())->heads.width > kMostWidth) {
    bound.error = "heads wider than 256";
  }
  return bound;
}

Bound BindAttentionGrad(const std::string&, const BindArgs& args) {
  Bound bound = BindShape(args.in[1].shape, *args.attrs, args.attrs->GetFloat("rotary_base"), true);
  if (bound.error.empty() &&
      static_cast<const AttentionState*>(bound.state.get())->heads.width > kMostWidth) {
    bound.error = "heads wider than 256";
  }
  return bound;
}

Bound BindRotary(const std::string&, const BindArgs& args) {
  return BindShape(args.in[0].shape, *args.attrs, args.attrs->GetFloat("base"), false);
}

unsigned Blocks(int64_t items, int64_t each) { return static_cast<unsigned>(CeilDiv(items, each)); }

// The geometry with its table made.
Heads Rotate(const AttentionState& s, const KernelArgs& args) {
  Heads h = s.heads;
  const int64_t angles = int64_t{h.time} * (h.width / 2);
  if (s.base == 0 || angles == 0) return h;
  auto* const table = static_cast<float2*>(args.scratch);
  RotationKernel<<<Blocks(angles, kThreads), kThreads, 0, StreamOf(args)>>>(table, h.time, h.width,
                                                                            s.base);
  h.rotation = table;
  return h;
}

// Calls body(number of columns a lane as a constant).
template <typename Body>
int WithColumns(int width, Body&& body) {
  if (width <= 32) return body(std::integral_constant<int, 1>{});
  if (width <= 64) return body(std::integral_constant<int, 2>{});
  if (width <= 128) return body(std::integral_constant<int, 4>{});
  return body(std::integral_constant<int, 8>{});
}

// More shared memory than a kernel gets unasked.
template <typename K>
void Allow(K kernel, int64_t bytes) {
  constexpr int64_t kUnasked = 48 << 10;
  if (bytes > kUnasked) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
  }
}

template <typename T>
int ForwardOf(const AttentionState& s, const KernelArgs& args) {
  const Heads h = Rotate(s, args);
  const int64_t shared = SharedBytes(h.width);
  const dim3 grid(Blocks(h.time, kTile), static_cast<unsigned>(s.batch * h.heads));
  return WithColumns(h.width, [&](auto columns) {
    const auto kernel = ForwardKernel<T, columns.value>;
    Allow(kernel, shared);
    kernel<<<grid, kThreads, static_cast<size_t>(shared), StreamOf(args)>>>(
        h, args.in[0].as<const T>(), args.out[0].as<T>(), args.out[1].as<float>());
    return cuda::LaunchError();
  });
}

int LaunchAttention(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  if (s.batch * s.heads.time == 0) return 0;
  return args.in[0].dtype == DType::kBF16 ? ForwardOf<bf16>(s, args) : ForwardOf<float>(s, args);
}

template <typename T>
int BackwardOf(const AttentionState& s, const KernelArgs& args) {
  const Heads h = Rotate(s, args);
  const cudaStream_t stream = StreamOf(args);
  const auto *dy = args.in[0].as<const T>(), *qkv = args.in[1].as<const T>();
  const auto* lse = args.in[3].as<const float>();
  auto* const delta = reinterpret_cast<float*>(static_cast<char*>(args.scratch) + s.delta);
  const int64_t rows = s.batch * h.heads * h.time;
  DeltaKernel<T>
      <<<Blocks(rows, kWarps), kThreads, 0, stream>>>(h, dy, args.in[2].as<const T>(), delta, rows);
  const int64_t shared = SharedBytes(h.width);
  const dim3 grid(Blocks(h.time, kTile), static_cast<unsigned>(s.batch * h.heads));
  return WithColumns(h.width, [&](auto columns) {
    const auto keys = BackwardKernel<T, columns.value, true>;
    const auto queries = BackwardKernel<T, columns.value, false>;
    Allow(keys, shared);
    Allow(queries, shared);
    keys<<<grid, kThreads, static_cast<size_t>(shared), stream>>>(h, dy, qkv, lse, delta,
                                                                  args.out[0].as<T>());
    queries<<<grid, kThreads, static_cast<size_t>(shared), stream>>>(h, dy, qkv, lse, delta,
                                                                     args.out[0].as<T>());
    return cuda::LaunchError();
  });
}

int LaunchAttentionGrad(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  if (s.batch * s.heads.time == 0) return 0;
  return args.in[1].dtype == DType::kBF16 ? BackwardOf<bf16>(s, args) : BackwardOf<float>(s, args);
}

int LaunchRotary(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  const int64_t total = args.out[0].elements();
  if (total == 0) return 0;
  const Heads h = Rotate(s, args);
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    RotaryKernel<T><<<Blocks(total, kThreads), kThreads, 0, StreamOf(args)>>>(
        h, args.in[0].as<const T>(), args.out[0].as<T>(), s.inverse, total);
  };
  if (args.in[0].dtype == DType::kBF16) {
    launch(bf16{});
  } else {
    launch(float{});
  }
  return cuda::LaunchError();
}

}  // namespace

void RegisterAttentionCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rotary", kCuda, {nullptr, BindRotary, LaunchRotary, true});
  table->Add("attention", kCuda, {nullptr, BindAttention, LaunchAttention, true});
  table->Add("attention_grad", kCuda, {nullptr, BindAttentionGrad, LaunchAttentionGrad, true});
}

}  // namespace weft
