// What the tensor-core kernels of attention share beyond tiles: the geometry of a call, rotation, a
// warp's share of the forward and of the backward pass.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/attention/tiles.cuh"

namespace weft::attention {

inline constexpr int kMostHalf = 64;
inline constexpr float kLog2E = 1.44269504088896f;

// The geometry of one call.
struct Heads {
  int time, heads;
  bool causal, rotates;
  float scale;
  double turns[kMostHalf];  // of pair i from one position to the next, in half circles
};

inline Heads HeadsOf(const AttentionCall& call) {
  constexpr double kPi = 3.14159265358979323846;
  Heads h = {};
  h.time = call.time;
  h.heads = call.heads;
  h.causal = call.causal;
  h.rotates = call.rotary_base != 0;
  h.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(call.width)));
  for (int i = 0; h.rotates && i < call.width / 2; ++i) {
    h.turns[i] = std::pow(call.rotary_base, -2.0 * i / call.width) / kPi;
  }
  return h;
}

// Launches with that many bytes of shared memory, of which a kernel gets 48 KiB unasked.
template <typename K, typename... Args>
int Launch(K kernel, dim3 grid, int threads, int64_t bytes, cudaStream_t stream, Args... args) {
  if (bytes > 48 << 10) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<size_t>(bytes), stream>>>(args...);
  return cuda::LaunchError();
}

// Where a head's rows begin, in elements.
struct Place {
  int64_t qkv, y, lse;
  int64_t hidden, stride;  // from row to row of y, of qkv
};
template <int kColumns>
__device__ __forceinline__ Place PlaceOf(const Heads& h, int64_t number) {
  const int64_t item = number / h.heads, head = number % h.heads;
  Place p;
  p.hidden = int64_t{h.heads} * kColumns;
  p.stride = 3 * p.hidden;
  p.qkv = item * h.time * p.stride + head * kColumns;
  p.y = item * h.time * p.hidden + head * kColumns;
  p.lse = number * h.time;
  return p;
}

// The last key that a query sees.
__device__ __forceinline__ int LastKey(const Heads& h, int query) {
  return h.causal ? min(query, h.time - 1) : h.time - 1;
}

// Sum, or maximum, over the four lanes that share rows.
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// ---- Rotation. Angles of position t are those of 16 (t / 16) and of t % 16 added, which are in
// two tables of cosines and sines: 1 + 1 evaluations do for 16 positions.

template <int kColumns>
struct Turns {
  static constexpr int kHalf = kColumns / 2;
  static constexpr int kStride = kHalf + 1;  // neighboring rows begin in different banks
  float2* fine;                              // [16]
  float2* coarse;                            // of the strips of some rows

  static constexpr int Bytes(int strips) {
    return (kStrip + strips) * kStride * static_cast<int>(sizeof(float2));
  }

  __device__ static float2 Evaluate(const Heads& h, int position, int i) {
    const double half_circles = position * h.turns[i];
    float2 turn;  // cosine, sine
    sincospif(static_cast<float>(half_circles - 2 * rint(half_circles / 2)), &turn.y, &turn.x);
    return turn;
  }
  __device__ void FillFine(const Heads& h) const {
    for (int i = threadIdx.x; i < kStrip * kHalf; i += blockDim.x) {
      fine[i / kHalf * kStride + i % kHalf] = Evaluate(h, i / kHalf, i % kHalf);
    }
  }
  // For `strips` strips from row `first` on.
  __device__ void FillCoarse(const Heads& h, int first, int strips) const {
    for (int i = threadIdx.x; i < strips * kHalf; i += blockDim.x) {
      coarse[i / kHalf * kStride + i % kHalf] = Evaluate(h, first + i / kHalf * kStrip, i % kHalf);
    }
  }
  // Of row `row` counted from the first one of the coarse table.
  __device__ float2 At(int row, int i) const {
    const float2 a = coarse[row / kStrip * kStride + i], b = fine[row % kStrip * kStride + i];
    return make_float2(a.x * b.x - a.y * b.y, a.y * b.x + a.x * b.y);
  }
};

// Rotates the pairs of two chunks, half a row apart, in place.
template <typename T>
__device__ __forceinline__ void RotateChunks(T* low, T* high, const float2 (&turns)[kChunk<T>]) {
  cuda::Pack<T> a = cuda::LoadPack(low), b = cuda::LoadPack(high);
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    const float x = cuda::Load(a.value[i]), y = cuda::Load(b.value[i]);
    a.value[i] = cuda::Round<T>(x * turns[i].x - y * turns[i].y);
    b.value[i] = cuda::Round<T>(y * turns[i].x + x * turns[i].y);
  }
  cuda::StorePack(low, a);
  cuda::StorePack(high, b);
}

// Rotates rows [0, rows) of one tile, or of two, whose rows are those of the coarse table from
// `first` on.
template <int kColumns, typename T>
__device__ __forceinline__ void RotateRows(const Turns<kColumns>& turns, int first, int rows,
                                           T* tile, T* other = nullptr) {
  constexpr int kPairs = kColumns / 2 / kChunk<T>;
  for (int i = threadIdx.x; i < rows * kPairs; i += blockDim.x) {
    const int row = i / kPairs, c = i % kPairs;
    float2 turn[kChunk<T>];
#pragma unroll
    for (int e = 0; e < kChunk<T>; ++e) turn[e] = turns.At(first + row, c * kChunk<T> + e);
    const int low = ChunkAt<T, kColumns>(row, c), high = ChunkAt<T, kColumns>(row, c + kPairs);
    RotateChunks(tile + low, tile + high, turn);
    if (other != nullptr) RotateChunks(other + low, other + high, turn);
  }
}

// Takes the rotation back from a strip's sums; tiles t and t + kTiles / 2 are pairs, the first one
// of columns from column_of(t) on. `row` counts from the first one of the coarse table.
template <int kColumns, int kTiles, typename ColumnOf>
__device__ __forceinline__ void RotateBack(const Turns<kColumns>& turns, int row,
                                           float (&sums)[kTiles][4], ColumnOf column_of) {
  const int lane = LaneId();
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 turn = turns.At(row + lane / 4 + e / 2 * 8, column_of(t) + lane % 4 * 2 + e % 2);
      const float low = sums[t][e], high = sums[t + kTiles / 2][e];
      sums[t][e] = low * turn.x + high * turn.y;
      sums[t + kTiles / 2][e] = high * turn.x - low * turn.y;
    }
  }
}

// ---- Products of a warp's strips with what all warps share.

// Adds to sums[m] the product of 16 rows from left_row[m] on of one tile with the transpose of
// kGroups strips, from `right_row` on, of another, for the first kActive of m.
template <typename Kind, int kColumns, int kActive, int kGroups, int kStrips>
__device__ __forceinline__ void MultiplyRows(const typename Kind::Element* left,
                                             const int (&left_row)[kStrips],
                                             const typename Kind::Element* right, int right_row,
                                             float (&sums)[kStrips][2 * kGroups][4]) {
#pragma unroll
  for (int k = 0; k < kColumns; k += Kind::kStep) {
    typename Kind::Left a[kActive];
#pragma unroll
    for (int m = 0; m < kActive; ++m) a[m] = LoadLeft<Kind, kColumns>(left, left_row[m], k);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      typename Kind::Right b[2];
      LoadRightTransposed<Kind, kColumns>(b, right, right_row + j * kStrip, k);
#pragma unroll
      for (int m = 0; m < kActive; ++m) {
        Kind::Multiply(sums[m][2 * j], a[m], b[0]);
        Kind::Multiply(sums[m][2 * j + 1], a[m], b[1]);
      }
    }
  }
}

// Adds to sums[m] the product of left[m], itself sums, with kGroups strips of a tile, from `row`
// on, for the first kActive of m.
template <typename Kind, int kColumns, int kActive, int kGroups, int kStrips>
__device__ __forceinline__ void AddRows(const float (&left)[kStrips][2 * kGroups][4],
                                        const typename Kind::Element* right, int row,
                                        float (&sums)[kStrips][kColumns / 8][4]) {
  constexpr int kTiles = Kind::kStep / 8;
#pragma unroll
  for (int j = 0; j < 2 * kGroups; j += kTiles) {
    typename Kind::Left a[kActive];
#pragma unroll
    for (int m = 0; m < kActive; ++m) a[m] = Kind::FromSums(&left[m][j]);
#pragma unroll
    for (int t = 0; t < kColumns / 8; t += 2) {
      typename Kind::Right b[2];
      LoadRight<Kind, kColumns>(b, right, row + j * 8, t * 8);
#pragma unroll
      for (int m = 0; m < kActive; ++m) {
        Kind::Multiply(sums[m][t], a[m], b[0]);
        Kind::Multiply(sums[m][t + 1], a[m], b[1]);
      }
    }
  }
}

// ---- Forward: a warp's strips of queries, over keys in any pieces (arXiv 2205.14135).

template <typename Kind, int kColumns, int kStrips>
struct ForwardWarp {
  using T = typename Kind::Element;
  using Left = typename Kind::Left;
  static constexpr int kSteps = kColumns / Kind::kStep, kTiles = kColumns / 8;
  // Whether the queries stay in registers.
  static constexpr bool kHold = kStrips * kSteps * static_cast<int>(sizeof(Left)) <= 128;
  const T* tile;
  int first_row;
  Left queries[kHold ? kStrips : 1][kHold ? kSteps : 1];
  float sums[kStrips][kTiles][4];
  float top[kStrips][2], total[kStrips][2];  // of rows lane / 4 and lane / 4 + 8; total: a lane's

  // The strips are rows `row` and on of `queries_tile`.
  __device__ __forceinline__ void Start(const T* queries_tile, int row) {
    tile = queries_tile;
    first_row = row;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
#pragma unroll
      for (int k = 0; kHold && k < kSteps; ++k) {
        queries[m][k] = LoadLeft<Kind, kColumns>(tile, row + m * kStrip, k * Kind::kStep);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][t][e] = 0;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[m][half] = -INFINITY;
        total[m][half] = 0;
      }
    }
  }

  // Adds kGroups strips of keys: `key` and on, in rows `row` and on of the tiles. `query` is the
  // first one of the warp. The first piece holds a key for every query.
  template <int kGroups>
  __device__ __forceinline__ void Add(const Heads& h, const T* keys, const T* values, int row,
                                      int key, int query) {
    float scores[kStrips][2 * kGroups][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Left a[kStrips];
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        if constexpr (kHold) {
          a[m] = queries[m][k];
        } else {
          a[m] = LoadLeft<Kind, kColumns>(tile, first_row + m * kStrip, k * Kind::kStep);
        }
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        typename Kind::Right b[2];
        LoadRightTransposed<Kind, kColumns>(b, keys, row + j * kStrip, k * Kind::kStep);
#pragma unroll
        for (int m = 0; m < kStrips; ++m) {
          Kind::Multiply(scores[m][2 * j], a[m], b[0]);
          Kind::Multiply(scores[m][2 * j + 1], a[m], b[1]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      Mask<kGroups>(h, scores[m], key, query + m * kStrip);
      Weigh<kGroups>(h, scores[m], m);
    }
    AddRows<Kind, kColumns, kStrips, kGroups>(scores, values, row, sums);
  }

  // Writes y = sums / total and lse of the strips from position `query` on.
  __device__ __forceinline__ void Finish(const Heads& h, int query, T* y, int64_t stride,
                                         float* lse) {
    const int lane = LaneId();
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      const int first = query + m * kStrip;
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = QuadSum(total[m][half]);
        inverse[half] = 1.0f / sum;
        const int row = first + lane / 4 + 8 * half;
        if (lane % 4 == 0 && row < h.time) lse[row] = top[m][half] * h.scale + logf(sum);
      }
      StoreStrip(sums[m], inverse[0], inverse[1], y, stride, first, h.time,
                 [](int t) { return t * 8; });
    }
  }

 private:
  template <int kGroups>
  __device__ __forceinline__ void Mask(const Heads& h, float (&scores)[2 * kGroups][4], int key,
                                       int query) {
    if (key + kGroups * kStrip - 1 <= LastKey(h, query)) return;
    const int lane = LaneId();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Counted from the lane's first column.
      const int last = LastKey(h, query + lane / 4 + 8 * half) - key - lane % 4 * 2;
#pragma unroll
      for (int t = 0; t < 2 * kGroups; ++t) {
        if (t * 8 > last) scores[t][2 * half] = -INFINITY;
        if (t * 8 + 1 > last) scores[t][2 * half + 1] = -INFINITY;
      }
    }
  }

  // Makes weights of the scores and rescales what was summed before.
  template <int kGroups>
  __device__ __forceinline__ void Weigh(const Heads& h, float (&scores)[2 * kGroups][4], int m) {
    const float scale = h.scale * kLog2E;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float greatest = top[m][half];
#pragma unroll
      for (int t = 0; t < 2 * kGroups; ++t) {
        greatest = fmaxf(greatest, fmaxf(scores[t][2 * half], scores[t][2 * half + 1]));
      }
      greatest = QuadMax(greatest);
      const float keep = PowerOfTwo((top[m][half] - greatest) * scale);
      const float base = greatest * scale;
      top[m][half] = greatest;
      float sum = 0;
#pragma unroll
      for (int t = 0; t < 2 * kGroups; ++t) {
        float& low = scores[t][2 * half];
        float& high = scores[t][2 * half + 1];
        low = PowerOfTwo(low * scale - base);
        high = PowerOfTwo(high * scale - base);
        sum += low + high;
      }
      total[m][half] = total[m][half] * keep + sum;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        sums[m][t][2 * half] *= keep;
        sums[m][t][2 * half + 1] *= keep;
      }
    }
  }
};

// ---- Backward.

// A warp's strips of keys, over queries in any pieces. Scores are computed with keys as rows, so
// that they are left operands of sums over queries: dk and dv.
template <typename Kind, int kColumns, int kStrips>
struct KeysWarp {
  using T = typename Kind::Element;
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kSpan = 64;  // columns of the tile of `ds`
  float dk[kStrips][kTiles][4] = {}, dv[kStrips][kTiles][4] = {};

  // One piece: kGroups strips of queries, from `query` on, in rows `row` and on of `queries`, `dy`,
  // `lse` and `delta`; past the end all of them are zeros. Of the warp's strips, which begin at
  // keys `key[m]` and rows `key_row[m]` of the tiles, in rising order, the first `active` take
  // part. ds, where there is a tile for it, goes to rows by key, columns from `column` on.
  struct Piece {
    const T *keys, *values, *queries, *dy;
    const float *lse, *delta;
    bf16* ds;
    int row, query, column, active;
    int key[kStrips], key_row[kStrips];
  };

  template <int kGroups>
  __device__ __forceinline__ void Add(const Heads& h, const Piece& p) {
    static_assert(kStrips <= 2);
    if (kStrips == 1 || p.active < kStrips) {
      AddActive<kGroups, 1>(h, p);
    } else {
      AddActive<kGroups, kStrips>(h, p);
    }
  }

 private:
  template <int kGroups, int kActive>
  __device__ __forceinline__ void AddActive(const Heads& h, const Piece& p) {
    float scores[kStrips][2 * kGroups][4] = {}, dp[kStrips][2 * kGroups][4] = {};
    MultiplyRows<Kind, kColumns, kActive, kGroups>(p.keys, p.key_row, p.queries, p.row, scores);
    MultiplyRows<Kind, kColumns, kActive, kGroups>(p.values, p.key_row, p.dy, p.row, dp);
#pragma unroll
    for (int m = 0; m < kActive; ++m) Differentiate<kGroups>(h, p, m, scores[m], dp[m]);
    AddRows<Kind, kColumns, kActive, kGroups>(scores, p.dy, p.row, dv);
    AddRows<Kind, kColumns, kActive, kGroups>(dp, p.queries, p.row, dk);
  }

  // Of scores makes p = 2^(scores - lse), of dp ds = p (dp - delta).
  template <int kGroups>
  __device__ __forceinline__ void Differentiate(const Heads& h, const Piece& p, int m,
                                                float (&scores)[2 * kGroups][4],
                                                float (&dp)[2 * kGroups][4]) {
    const int lane = LaneId();
    const float scale = h.scale * kLog2E;
#pragma unroll
    for (int t = 0; t < 2 * kGroups; ++t) {
      const float2 lse = *reinterpret_cast<const float2*>(p.lse + p.row + t * 8 + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& w = scores[t][e];
        w = PowerOfTwo(w * scale - (e % 2 == 0 ? lse.x : lse.y) * kLog2E);
      }
    }
    // Not every key of the strip is seen by every query of the piece.
    if (p.key[m] + kStrip - 1 > LastKey(h, p.query)) {
      const int key = p.key[m] + lane / 4;
#pragma unroll
      for (int t = 0; t < 2 * kGroups; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int last = LastKey(h, p.query + t * 8 + lane % 4 * 2 + e % 2);
          if (key + e / 2 * 8 > last) scores[t][e] = 0;
        }
      }
    }
#pragma unroll
    for (int t = 0; t < 2 * kGroups; ++t) {
      const float2 delta = *reinterpret_cast<const float2*>(p.delta + p.row + t * 8 + lane % 4 * 2);
      float(&d)[4] = dp[t];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        d[e] = scores[t][e] * (d[e] - (e % 2 == 0 ? delta.x : delta.y));
      }
      if (p.ds == nullptr) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bf16* const to = p.ds + ChunkAt<bf16, kSpan>(p.key_row[m] + lane / 4 + 8 * half,
                                                     p.column / kChunk<bf16> + t);
        *reinterpret_cast<uint32_t*>(to + lane % 4 * 2) = PackPair(d[2 * half], d[2 * half + 1]);
      }
    }
  }
};

// A warp's strips of queries, over keys in any pieces: dq.
template <typename Kind, int kColumns, int kStrips>
struct QueriesWarp {
  using T = typename Kind::Element;
  static constexpr int kTiles = kColumns / 8;
  float dq[kStrips][kTiles][4] = {};
  float lse[kStrips][2], delta[kStrips][2];  // of rows lane / 4 and lane / 4 + 8; lse times log2(e)

  // Adds kGroups strips of keys: `key` and on, in rows `row` and on of their tiles. The warp's
  // queries are `query[m]` and on, in rows `query_row[m]` of theirs.
  template <int kGroups>
  __device__ __forceinline__ void Add(const Heads& h, const T* queries, const T* dy,
                                      const int (&query)[kStrips], const int (&query_row)[kStrips],
                                      const T* keys, const T* values, int row, int key) {
    float scores[kStrips][2 * kGroups][4] = {}, dp[kStrips][2 * kGroups][4] = {};
    MultiplyRows<Kind, kColumns, kStrips, kGroups>(queries, query_row, keys, row, scores);
    MultiplyRows<Kind, kColumns, kStrips, kGroups>(dy, query_row, values, row, dp);
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      Differentiate<kGroups>(h, query[m], key, m, scores[m], dp[m]);
    }
    AddRows<Kind, kColumns, kStrips, kGroups>(dp, keys, row, dq);
  }

 private:
  // Of dp makes ds = p (dp - delta).
  template <int kGroups>
  __device__ __forceinline__ void Differentiate(const Heads& h, int query, int first_key, int m,
                                                const float (&scores)[2 * kGroups][4],
                                                float (&dp)[2 * kGroups][4]) {
    const int lane = LaneId();
    const float scale = h.scale * kLog2E;
    const bool all_seen = first_key + kGroups * kStrip - 1 <= LastKey(h, query);
#pragma unroll
    for (int t = 0; t < 2 * kGroups; ++t) {
      float w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) w[e] = PowerOfTwo(scores[t][e] * scale - lse[m][e / 2]);
      if (!all_seen) {
        const int key = first_key + t * 8 + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (key + e % 2 > LastKey(h, query + lane / 4 + e / 2 * 8)) w[e] = 0;
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[t][e] = w[e] * (dp[t][e] - delta[m][e / 2]);
    }
  }
};

}  // namespace weft::attention
