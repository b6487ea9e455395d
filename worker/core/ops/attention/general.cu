// Attention on CUDA for any length and head width up to 256, in f32 arithmetic, without ever
// storing scores (arXiv 2205.14135). Tiles of 32 queries and 32 keys lie in shared memory; a warp
// owns eight of one side, its lanes the 32 of the other for scores and the head's columns for sums.
//
// Backward computes probabilities again out of lse. One launch goes over keys, one over queries, so
// that every sum is in a fixed order. Rotation is applied when q and k are loaded and undone when
// their gradients are stored, with angles from a table that a small launch makes in double.
#include <cmath>
#include <type_traits>

#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/cuda_kernel.cuh"

namespace weft::attention {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = 32;               // queries, and keys
constexpr int kOwned = kTile / kWarps;  // of a warp
constexpr float kLog2E = 1.44269504088896f;

// The geometry of one call.
struct GeneralHeads {
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
__device__ __forceinline__ float Rotated(const GeneralHeads& h, const T* row, int t, int d) {
  if (h.rotation == nullptr) return cuda::Load(row[d]);
  const int half = h.width / 2;
  const bool first = d < half;
  const float2 r = h.rotation[t * half + (first ? d : d - half)];
  const float own = cuda::Load(row[d]), other = cuda::Load(row[first ? d + half : d - half]);
  return first ? own * r.x - other * r.y : own * r.x + other * r.y;
}

// Rows [first, first + kTile) into shared memory, zeros past the end.
template <bool kRotate, typename T>
__device__ __forceinline__ void LoadTile(const GeneralHeads& h, const T* base, int64_t row_stride,
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
__device__ __forceinline__ void StoreRows(const GeneralHeads& h,
                                          const float (&sums)[kOwned][kColumns], float factor,
                                          int first, T* base, int64_t row_stride, float* stage) {
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

// A block is a tile of queries of a head of an item.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(__grid_constant__ const GeneralHeads h, const T* qkv, T* y, float* lse) {
  extern __shared__ float memory[];
  const Shared s = Carve(memory, h.width);
  const int tiles = (h.time + kTile - 1) / kTile;
  const int64_t number = blockIdx.x / tiles, item = number / h.heads, head = number % h.heads;
  const int first = static_cast<int>(blockIdx.x) % tiles * kTile;
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
      lse[number * h.time + query] = top[o] + logf(total[o]);
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
    DeltaKernel(__grid_constant__ const GeneralHeads h, const T* dy, const T* y, float* delta,
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

// A block is a tile of a head of an item. kKeys: warps own keys and sum dk and dv over queries;
// else they own queries and sum dq over keys.
template <typename T, int kColumns, bool kKeys>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(__grid_constant__ const GeneralHeads h, const T* dy, const T* qkv,
                   const float* lse, const float* delta, T* dqkv) {
  extern __shared__ float memory[];
  const Shared s = Carve(memory, h.width);
  const int tiles = (h.time + kTile - 1) / kTile;
  const int64_t number = blockIdx.x / tiles, item = number / h.heads, head = number % h.heads;
  const int first = static_cast<int>(blockIdx.x) % tiles * kTile;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t packed = item * h.time * h.stride() + head * h.width;
  const T *const q = qkv + packed, *const k = q + h.hidden(), *const v = k + h.hidden();
  const T* const dyh = dy + item * h.time * h.hidden() + head * h.width;
  const float* const lse_row = lse + number * h.time;
  const float* const delta_row = delta + number * h.time;
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
    RotaryKernel(__grid_constant__ const GeneralHeads h, const T* in, T* out, bool inverse,
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

unsigned Blocks(int64_t items, int64_t each) { return static_cast<unsigned>(CeilDiv(items, each)); }

int64_t AnglesBytes(const AttentionCall& call) {
  if (call.rotary_base == 0) return 0;
  const int64_t angles = int64_t{call.time} * (call.width / 2);
  return CeilDiv(angles * static_cast<int64_t>(sizeof(float2)), 256) * 256;
}

// The geometry, with the table of angles made.
GeneralHeads Prepare(const AttentionCall& call, cudaStream_t stream) {
  GeneralHeads h = {call.time, call.heads, call.width, call.causal, 0, nullptr};
  h.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(call.width)));
  const int64_t angles = int64_t{call.time} * (call.width / 2);
  if (call.rotary_base == 0 || angles == 0) return h;
  auto* const table = static_cast<float2*>(call.scratch);
  RotationKernel<<<Blocks(angles, kThreads), kThreads, 0, stream>>>(table, call.time, call.width,
                                                                    call.rotary_base);
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

dim3 GridOf(const AttentionCall& call) {
  return dim3(static_cast<unsigned>(call.items * call.heads * CeilDiv(call.time, kTile)));
}

template <typename T>
int Forward(const AttentionCall& call, cudaStream_t stream) {
  const GeneralHeads h = Prepare(call, stream);
  const int64_t shared = SharedBytes(h.width);
  return WithColumns(h.width, [&](auto columns) {
    const auto kernel = ForwardKernel<T, columns.value>;
    Allow(kernel, shared);
    kernel<<<GridOf(call), kThreads, static_cast<size_t>(shared), stream>>>(
        h, static_cast<const T*>(call.qkv), static_cast<T*>(call.y), call.lse);
    return cuda::LaunchError();
  });
}

template <typename T>
int Backward(const AttentionCall& call, cudaStream_t stream) {
  const GeneralHeads h = Prepare(call, stream);
  const auto* const dy = static_cast<const T*>(call.dy);
  const auto* const qkv = static_cast<const T*>(call.qkv);
  auto* const dqkv = static_cast<T*>(call.dqkv);
  auto* const delta =
      reinterpret_cast<float*>(static_cast<char*>(call.scratch) + AnglesBytes(call));
  DeltaKernel<T><<<Blocks(call.rows(), kWarps), kThreads, 0, stream>>>(
      h, dy, static_cast<const T*>(call.y), delta, call.rows());
  const int64_t shared = SharedBytes(h.width);
  return WithColumns(h.width, [&](auto columns) {
    const auto keys = BackwardKernel<T, columns.value, true>;
    const auto queries = BackwardKernel<T, columns.value, false>;
    Allow(keys, shared);
    Allow(queries, shared);
    const auto bytes = static_cast<size_t>(shared);
    keys<<<GridOf(call), kThreads, bytes, stream>>>(h, dy, qkv, call.lse, delta, dqkv);
    queries<<<GridOf(call), kThreads, bytes, stream>>>(h, dy, qkv, call.lse, delta, dqkv);
    return cuda::LaunchError();
  });
}

template <typename T>
int RotateOf(const AttentionCall& call, bool inverse, cudaStream_t stream) {
  const GeneralHeads h = Prepare(call, stream);
  const int64_t total = 3 * call.rows() * call.width;
  RotaryKernel<T><<<Blocks(total, kThreads), kThreads, 0, stream>>>(
      h, static_cast<const T*>(call.qkv), static_cast<T*>(call.y), inverse, total);
  return cuda::LaunchError();
}

}  // namespace

int64_t GeneralScratch(const AttentionCall& call, bool backward) {
  const int64_t delta = call.rows() * static_cast<int64_t>(sizeof(float));
  return AnglesBytes(call) + (backward ? delta : 0);
}

int GeneralForward(const AttentionCall& call, DType dtype, cudaStream_t stream) {
  return dtype == DType::kBF16 ? Forward<bf16>(call, stream) : Forward<float>(call, stream);
}

int GeneralBackward(const AttentionCall& call, DType dtype, cudaStream_t stream) {
  return dtype == DType::kBF16 ? Backward<bf16>(call, stream) : Backward<float>(call, stream);
}

int Rotate(const AttentionCall& call, bool inverse, DType dtype, cudaStream_t stream) {
  return dtype == DType::kBF16 ? RotateOf<bf16>(call, inverse, stream)
                               : RotateOf<float>(call, inverse, stream);
}

}  // namespace weft::attention
