// Attention for any number of positions (arXiv 2205.14135, 2307.08691): a block owns a tile of
// queries, or of keys, and tiles of the other side go by in two stages of shared memory, one copied
// while the other is worked on.
//
// Backward here is two launches, so that each sum is made by one block in a fixed order: over
// queries (dq, and delta = sum of dy y for the second one), then over keys (dk, dv). Both compute
// probabilities again out of lse; for bf16 there is another one (streamed_bf16.cu).
// (streamed_bf16.cu has another for bf16.)
#pragma once

#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/attention/warps.cuh"

namespace weft::attention {

inline constexpr int kStreamWarps = 4;
inline constexpr int kStreamThreads = kStreamWarps * cuda::kWarp;
inline constexpr int kStages = 2;

// Strips of a warp: two halve the loads of what goes by, where registers and memory allow it.
template <typename T, int kColumns>
constexpr int kStripsOf = sizeof(T) == 2 && kColumns <= 64 ? 2 : 1;
// Rows that a block owns.
template <typename T, int kColumns>
constexpr int kOwned = kStreamWarps* kStripsOf<T, kColumns>* kStrip;
// Rows of a tile that goes by.
template <typename T>
constexpr int kStream = sizeof(T) == 2 ? 64 : 32;

// Shared memory: one tile or two that the block owns, two that go by in stages, floats with them,
// tables of angles.
template <typename T, int kColumns>
struct StreamShared {
  using Table = Turns<kColumns>;
  static constexpr int kOwnedTile = kOwned<T, kColumns> * kRow<T, kColumns>;
  static constexpr int kTile = kStream<T> * kRow<T, kColumns>;
  static constexpr int kStreamStrips = kStream<T> / kStrip;
  static constexpr int kOwnedStrips = kOwned<T, kColumns> / kStrip;
  static_assert(kStages * kStream<T> >= kOwned<T, kColumns>);

  static constexpr int Bytes(int owned_tiles, bool rotates) {
    return (owned_tiles * kOwnedTile + 2 * kStages * kTile) * static_cast<int>(sizeof(T)) +
           2 * kStages * kStream<T> * static_cast<int>(sizeof(float)) +
           (rotates ? Table::Bytes(kOwnedStrips + kStages * kStreamStrips) : 0);
  }

  T *owned, *owned_other;      // the same where there is one
  T *passing, *passing_other;  // [kStages]
  float *first, *second;       // [kStages][kStream], or of the owned rows
  Table turns, passing_turns;  // of the owned rows; of a stage's

  __device__ StreamShared(uint4* memory, int owned_tiles) {
    owned = reinterpret_cast<T*>(memory);
    owned_other = owned + (owned_tiles - 1) * kOwnedTile;
    passing = owned_other + kOwnedTile;
    passing_other = passing + kStages * kTile;
    first = reinterpret_cast<float*>(passing_other + kStages * kTile);
    second = first + kStages * kStream<T>;
    turns.fine = passing_turns.fine = reinterpret_cast<float2*>(second + kStages * kStream<T>);
    turns.coarse = turns.fine + kStrip * Table::kStride;
    passing_turns.coarse = turns.coarse + kOwnedStrips * Table::kStride;
  }
  __device__ T* Passing(int number) const { return passing + number % kStages * kTile; }
  __device__ T* PassingOther(int number) const { return passing_other + number % kStages * kTile; }
  __device__ Table PassingTurns(int number) const {
    Table t = passing_turns;
    t.coarse += number % kStages * kStreamStrips * Table::kStride;
    return t;
  }
};

// Which rows of which head the block owns; blocks of one head follow each other, so that what goes
// by comes from the L2 cache, those with the most to do first.
struct OwnedRows {
  int64_t head;
  int first;
};
template <typename T, int kColumns>
__device__ __forceinline__ OwnedRows OwnedOf(const Heads& h, bool last_first) {
  const int tiles = (h.time + kOwned<T, kColumns> - 1) / kOwned<T, kColumns>;
  const int tile = static_cast<int>(blockIdx.x % tiles);
  return {blockIdx.x / tiles, (last_first ? tiles - 1 - tile : tile) * kOwned<T, kColumns>};
}

// Goes over the tiles of keys and values that queries of the block see: body(number) has them at
// hand, rotated. What the block owns was copied before; own() prepares it with the first tile.
template <int kColumns, typename T, typename Own, typename Body>
__device__ __forceinline__ void OverKeys(const Heads& h, const StreamShared<T, kColumns>& s,
                                         const T* k, const Place& at, int first_query, Own&& own,
                                         Body&& body) {
  const int end = h.causal ? min(h.time, first_query + kOwned<T, kColumns>) : h.time;
  const int tiles = (end + kStream<T> - 1) / kStream<T>;
  const auto start = [&](int number) {
    const int row = number * kStream<T>;
    CopyRows<kColumns>(s.Passing(number), 0, k, at.stride, row, kStream<T>, h.time);
    CopyRows<kColumns>(s.PassingOther(number), 0, k + at.hidden, at.stride, row, kStream<T>,
                       h.time);
    CommitCopies();
  };
  start(0);
  if (h.rotates) {
    s.turns.FillFine(h);
    s.turns.FillCoarse(h, first_query, s.kOwnedStrips);
    s.PassingTurns(0).FillCoarse(h, 0, s.kStreamStrips);
  }
  for (int i = 0; i < tiles; ++i) {
    WaitForCopies<0>();
    // Also: everyone is done with the other stage.
    __syncthreads();
    if (i + 1 < tiles) start(i + 1);
    if (h.rotates) {
      RotateRows(s.PassingTurns(i), 0, kStream<T>, s.Passing(i));
      s.PassingTurns(i + 1).FillCoarse(h, (i + 1) * kStream<T>, s.kStreamStrips);
    }
    if (i == 0) own();
    if (h.rotates || i == 0) __syncthreads();
    body(i);
  }
}

template <typename Kind, int kColumns, typename T = typename Kind::Element>
__global__ void __launch_bounds__(kStreamThreads, 2)
    StreamForwardKernel(const __grid_constant__ Heads h, const T* __restrict__ qkv,
                        T* __restrict__ y, float* __restrict__ lse) {
  extern __shared__ uint4 shared[];
  constexpr int kStrips = kStripsOf<T, kColumns>;
  const StreamShared<T, kColumns> s(shared, 1);
  const OwnedRows own = OwnedOf<T, kColumns>(h, true);
  const Place at = PlaceOf<kColumns>(h, own.head);
  const T* const q = qkv + at.qkv;
  CopyRows<kColumns>(s.owned, 0, q, at.stride, own.first, kOwned<T, kColumns>, h.time);
  const int row = WarpId() * kStrips * kStrip, query = own.first + row;
  ForwardWarp<Kind, kColumns, kStrips> w;
  OverKeys<kColumns>(
      h, s, q + at.hidden, at, own.first,
      [&] {
        if (h.rotates) RotateRows(s.turns, 0, kOwned<T, kColumns>, s.owned);
      },
      [&](int number) {
        const int key = number * kStream<T>;
        if (number == 0) w.Start(s.owned, row);
        if (h.causal && key > query + kStrips * kStrip - 1) return;
        w.template Add<kStream<T> / kStrip>(h, s.Passing(number), s.PassingOther(number), 0, key,
                                            query);
      });
  w.Finish(h, query, y + at.y, at.hidden, lse + at.lse);
}

// Backward over queries: dq and delta.
template <typename Kind, int kColumns, typename T = typename Kind::Element>
__global__ void __launch_bounds__(kStreamThreads, 2)
    StreamQueriesKernel(const __grid_constant__ Heads h, const T* __restrict__ dy,
                        const T* __restrict__ qkv, const T* __restrict__ y,
                        const float* __restrict__ lse, float* __restrict__ delta,
                        T* __restrict__ dqkv) {
  extern __shared__ uint4 shared[];
  constexpr int kStrips = kStripsOf<T, kColumns>, kChunks = kColumns / kChunk<T>;
  const StreamShared<T, kColumns> s(shared, 2);
  const OwnedRows own = OwnedOf<T, kColumns>(h, true);
  const Place at = PlaceOf<kColumns>(h, own.head);
  const T* const q = qkv + at.qkv;
  CopyRows<kColumns>(s.owned, 0, q, at.stride, own.first, kOwned<T, kColumns>, h.time);
  CopyRows<kColumns>(s.owned_other, 0, dy + at.y, at.hidden, own.first, kOwned<T, kColumns>,
                     h.time);
  const int lane = LaneId();
  int row[kStrips], query[kStrips];
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
    row[m] = (WarpId() * kStrips + m) * kStrip;
    query[m] = own.first + row[m];
  }
  const auto fill_delta = [&] {
    for (int i = threadIdx.x; i < kOwned<T, kColumns> * kChunks; i += kStreamThreads) {
      const int r = i / kChunks, c = i % kChunks, position = own.first + r;
      const cuda::Pack<T> a = cuda::LoadPack(s.owned_other + ChunkAt<T, kColumns>(r, c));
      cuda::Pack<T> b = {};
      if (position < h.time) b = cuda::LoadPack(y + at.y + position * at.hidden + c * kChunk<T>);
      const float sum = RowDot<kColumns>(a, b);
      if (c != 0) continue;
      s.first[r] = sum;
      if (position < h.time) delta[at.lse + position] = sum;
    }
  };
  QueriesWarp<Kind, kColumns, kStrips> w;
  OverKeys<kColumns>(
      h, s, q + at.hidden, at, own.first,
      [&] {
        if (h.rotates) RotateRows(s.turns, 0, kOwned<T, kColumns>, s.owned);
        fill_delta();
      },
      [&](int number) {
        if (number == 0) {
#pragma unroll
          for (int i = 0; i < kStrips * 2; ++i) {
            const int r = row[i / 2] + lane / 4 + i % 2 * 8, position = own.first + r;
            w.delta[i / 2][i % 2] = s.first[r];
            w.lse[i / 2][i % 2] = position < h.time ? lse[at.lse + position] * kLog2E : 0.0f;
          }
        }
#pragma unroll 1
        for (int strip = 0; strip < s.kStreamStrips; strip += 2) {
          const int key = number * kStream<T> + strip * kStrip;
          if (h.causal && key > query[kStrips - 1] + kStrip - 1) return;
          w.template Add<2>(h, s.owned, s.owned_other, query, row, s.Passing(number),
                            s.PassingOther(number), strip * kStrip, key);
        }
      });
  const auto columns = [](int t) { return t * 8; };
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
    if (h.rotates) RotateBack(s.turns, row[m], w.dq[m], columns);
    StoreStrip(w.dq[m], h.scale, h.scale, dqkv + at.qkv, at.stride, query[m], h.time, columns);
  }
}

// What a block does with a tile of keys in the backward pass, over the tiles of queries from
// `begin` on: for each Next, then Work. All that it refers to outlives it.
template <typename Kind, int kColumns>
struct KeysLoop {
  using T = typename Kind::Element;
  static constexpr int kStrips = kStripsOf<T, kColumns>;
  using Warp = KeysWarp<Kind, kColumns, kStrips>;
  using Piece = typename Warp::Piece;

  const Heads& h;
  const StreamShared<T, kColumns>& s;
  const Place& at;
  const T *qkv, *dy;
  const float *lse, *delta;
  int first;  // key of the block

  __device__ int begin() const { return h.causal ? first / kStream<T> : 0; }
  __device__ int end() const { return (h.time + kStream<T> - 1) / kStream<T>; }

  // Starts the copies of the block's own rows and of the first tile.
  __device__ __forceinline__ void Start() const {
    const T* const k = qkv + at.qkv + at.hidden;
    CopyRows<kColumns>(s.owned, 0, k, at.stride, first, kOwned<T, kColumns>, h.time);
    CopyRows<kColumns>(s.owned_other, 0, k + at.hidden, at.stride, first, kOwned<T, kColumns>,
                       h.time);
    StartTile(begin());
    if (h.rotates) {
      s.turns.FillFine(h);
      s.turns.FillCoarse(h, first, s.kOwnedStrips);
      s.PassingTurns(begin()).FillCoarse(h, begin() * kStream<T>, s.kStreamStrips);
    }
  }

  __device__ __forceinline__ Piece FirstPiece() const {
    Piece piece;
    piece.keys = s.owned;
    piece.values = s.owned_other;
    piece.ds = nullptr;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      // Strips of a warp lie apart: with a causal mask warps then have about the same to do.
      piece.key_row[m] = (WarpId() + m * kStreamWarps) * kStrip;
      piece.key[m] = first + piece.key_row[m];
    }
    return piece;
  }

  // Waits for tile `i`, then everyone is done with the one before.
  __device__ __forceinline__ void Next(int i) const {
    WaitForCopies<0>();
    __syncthreads();
    if (i + 1 < end()) StartTile(i + 1);
    if (!h.rotates) return;
    RotateRows(s.PassingTurns(i), 0, kStream<T>, s.Passing(i));
    if (i == begin()) RotateRows(s.turns, 0, kOwned<T, kColumns>, s.owned);
    s.PassingTurns(i + 1).FillCoarse(h, (i + 1) * kStream<T>, s.kStreamStrips);
    __syncthreads();
  }

  __device__ __forceinline__ void Work(int i, Warp* w, Piece* piece) const {
    piece->queries = s.Passing(i);
    piece->dy = s.PassingOther(i);
    piece->lse = s.first + i % kStages * kStream<T>;
    piece->delta = s.second + i % kStages * kStream<T>;
#pragma unroll 1
    for (int row = 0; row < kStream<T>; row += 2 * kStrip) {
      piece->row = piece->column = row;
      piece->query = i * kStream<T> + row;
      piece->active = 0;
#pragma unroll
      for (int m = 0; m < kStrips; ++m) {
        piece->active += !h.causal || piece->key[m] <= piece->query + 2 * kStrip - 1;
      }
      if (piece->active > 0) w->template Add<2>(h, *piece);
    }
  }

  __device__ __forceinline__ void Finish(Warp* w, const Piece& piece, T* dqkv) const {
    const auto columns = [](int t) { return t * 8; };
    T* const dk = dqkv + at.qkv + at.hidden;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      if (h.rotates) RotateBack(s.turns, piece.key_row[m], w->dk[m], columns);
      StoreStrip(w->dk[m], h.scale, h.scale, dk, at.stride, piece.key[m], h.time, columns);
      StoreStrip(w->dv[m], 1.0f, 1.0f, dk + at.hidden, at.stride, piece.key[m], h.time, columns);
    }
  }

  __device__ __forceinline__ void StartTile(int number) const {
    const int row = number * kStream<T>, stage = number % kStages * kStream<T>;
    CopyRows<kColumns>(s.Passing(number), 0, qkv + at.qkv, at.stride, row, kStream<T>, h.time);
    CopyRows<kColumns>(s.PassingOther(number), 0, dy + at.y, at.hidden, row, kStream<T>, h.time);
    for (int i = threadIdx.x; i < 2 * kStream<T>; i += kStreamThreads) {
      const int r = i % kStream<T>;
      const bool valid = row + r < h.time;
      CopyFloat((i < kStream<T> ? s.first : s.second) + stage + r,
                (i < kStream<T> ? lse : delta) + at.lse + (valid ? row + r : 0), valid);
    }
    CommitCopies();
  }
};

// Backward over keys: dk and dv.
template <typename Kind, int kColumns, typename T = typename Kind::Element>
__global__ void __launch_bounds__(kStreamThreads, 2)
    StreamKeysKernel(const __grid_constant__ Heads h, const T* __restrict__ dy,
                     const T* __restrict__ qkv, const float* __restrict__ lse,
                     const float* __restrict__ delta, T* __restrict__ dqkv) {
  extern __shared__ uint4 shared[];
  const StreamShared<T, kColumns> s(shared, 2);
  const OwnedRows own = OwnedOf<T, kColumns>(h, false);
  const Place at = PlaceOf<kColumns>(h, own.head);
  using Loop = KeysLoop<Kind, kColumns>;
  const Loop loop = {h, s, at, qkv, dy, lse, delta, own.first};
  loop.Start();
  typename Loop::Warp w;
  typename Loop::Piece piece = loop.FirstPiece();
  for (int i = loop.begin(); i < loop.end(); ++i) {
    loop.Next(i);
    loop.Work(i, &w, &piece);
  }
  loop.Finish(&w, piece, dqkv);
}

template <typename T, int kColumns>
dim3 StreamGrid(const AttentionCall& call) {
  const int64_t tiles = cuda::CeilDiv(call.time, kOwned<T, kColumns>);
  return dim3(static_cast<unsigned>(call.items * call.heads * tiles));
}

template <typename Kind, int kColumns>
int StreamForward(const AttentionCall& call, cudaStream_t stream) {
  using T = typename Kind::Element;
  const Heads h = HeadsOf(call);
  return Launch(StreamForwardKernel<Kind, kColumns>, StreamGrid<T, kColumns>(call), kStreamThreads,
                StreamShared<T, kColumns>::Bytes(1, h.rotates), stream, h,
                static_cast<const T*>(call.qkv), static_cast<T*>(call.y), call.lse);
}

template <typename Kind, int kColumns>
int StreamBackward(const AttentionCall& call, cudaStream_t stream) {
  using T = typename Kind::Element;
  const Heads h = HeadsOf(call);
  const dim3 grid = StreamGrid<T, kColumns>(call);
  const int bytes = StreamShared<T, kColumns>::Bytes(2, h.rotates);
  const auto* const dy = static_cast<const T*>(call.dy);
  const auto* const qkv = static_cast<const T*>(call.qkv);
  const auto* const y = static_cast<const T*>(call.y);
  const float* const lse = call.lse;
  auto* const delta = static_cast<float*>(call.scratch);
  auto* const dqkv = static_cast<T*>(call.dqkv);
  const int error = Launch(StreamQueriesKernel<Kind, kColumns>, grid, kStreamThreads, bytes, stream,
                           h, dy, qkv, y, lse, delta, dqkv);
  if (error != 0) return error;
  return Launch(StreamKeysKernel<Kind, kColumns>, grid, kStreamThreads, bytes, stream, h, dy, qkv,
                lse, static_cast<const float*>(delta), dqkv);
}

template <typename Kind>
int StreamForwardOf(const AttentionCall& call, cudaStream_t stream) {
  if (call.width == 32) return StreamForward<Kind, 32>(call, stream);
  if (call.width == 64) return StreamForward<Kind, 64>(call, stream);
  return StreamForward<Kind, 128>(call, stream);
}

template <typename Kind>
int StreamBackwardOf(const AttentionCall& call, cudaStream_t stream) {
  if (call.width == 32) return StreamBackward<Kind, 32>(call, stream);
  if (call.width == 64) return StreamBackward<Kind, 64>(call, stream);
  return StreamBackward<Kind, 128>(call, stream);
}

}  // namespace weft::attention
