// Attention of bf16 with a whole head in shared memory: a block does all of one head, so that q, k,
// v are read once and gradients need no sums between blocks.
//
// Forward: a warp takes strips of 16 queries. Backward (probabilities out of lse): a warp owns
// strips of keys and sums their dk and dv in registers while blocks of 64 queries go by; ds of such
// a block goes through shared memory, where all warps make its dq. With a causal mask rows are
// copied in the order in which they are needed, so that copies go on while the first are worked on.
#include <algorithm>

#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/attention/warps.cuh"

namespace weft::attention {
namespace {

using cuda::CeilDiv;
using cuda::kWarp;

constexpr int kMostTime = 256;
constexpr int kMostWarps = 8;
constexpr int kBlock = 64;  // queries of a step of the backward pass
constexpr int kMostBlocks = kMostTime / kBlock;

constexpr int RoundUp(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Shared memory of the forward pass: q, k, v, tables of angles.
template <int kColumns>
int ForwardBytes(int time, bool rotates) {
  const int rows = RoundUp(time, kStrip);
  const int tiles = 3 * rows * kColumns * static_cast<int>(sizeof(bf16));
  return tiles + (rotates ? Turns<kColumns>::Bytes(rows / kStrip) : 0);
}

// As many blocks on a processor as registers allow without spilling.
template <int kColumns, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, kWarps <= 5 ? (kColumns == 32 ? 4 : 3) : 2)
    ForwardKernel(const __grid_constant__ Heads h, const bf16* __restrict__ qkv,
                  bf16* __restrict__ y, float* __restrict__ lse) {
  extern __shared__ uint4 shared[];
  const int strips = (h.time + kStrip - 1) / kStrip, rows = strips * kStrip;
  bf16* const q = reinterpret_cast<bf16*>(shared);
  bf16 *const k = q + rows * kColumns, *const v = k + rows * kColumns;
  const Place at = PlaceOf<kColumns>(h, blockIdx.x);
  CopyRows<kColumns>(q, 0, qkv + at.qkv, at.stride, 0, rows, h.time);
  CopyRows<kColumns>(k, 0, qkv + at.qkv + at.hidden, at.stride, 0, rows, h.time);
  CopyRows<kColumns>(v, 0, qkv + at.qkv + 2 * at.hidden, at.stride, 0, rows, h.time);
  CommitCopies();
  Turns<kColumns> turns;
  turns.fine = reinterpret_cast<float2*>(v + rows * kColumns);
  turns.coarse = turns.fine + kStrip * Turns<kColumns>::kStride;
  if (h.rotates) {
    turns.FillFine(h);
    turns.FillCoarse(h, 0, strips);
  }
  WaitForCopies<0>();
  __syncthreads();
  if (h.rotates) {
    RotateRows(turns, 0, h.time, q, k);
    __syncthreads();
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = WarpId();
  // There and back: with a causal mask a warp's strips cost about the same together.
  for (int begin = 0; begin < strips; begin += warps) {
    const int strip = begin + (begin / warps % 2 == 0 ? warp : warps - 1 - warp);
    if (strip >= strips) continue;
    const int query = strip * kStrip;
    const int groups = h.causal ? strip + 1 : strips;
    ForwardWarp<Narrow, kColumns, 1> w;
    w.Start(q, query);
    int group = 0;
    for (; group + 4 <= groups; group += 4) {
      w.template Add<4>(h, k, v, group * kStrip, group * kStrip, query);
    }
    switch (groups - group) {
      case 3:
        w.template Add<3>(h, k, v, group * kStrip, group * kStrip, query);
        break;
      case 2:
        w.template Add<2>(h, k, v, group * kStrip, group * kStrip, query);
        break;
      case 1:
        w.template Add<1>(h, k, v, group * kStrip, group * kStrip, query);
        break;
      default:
        break;
    }
    w.Finish(h, query, y + at.y, at.hidden, lse + at.lse);
  }
}

// Shared memory of the backward pass: q, k, v, dy, y, ds of a block of queries (rows by key), lse,
// delta, tables of angles.
template <int kColumns>
int BackwardBytes(int time, bool rotates) {
  const int rows = RoundUp(time, kStrip);
  const int tiles = rows * (5 * kColumns + kBlock) * static_cast<int>(sizeof(bf16));
  return tiles + 2 * rows * static_cast<int>(sizeof(float)) +
         (rotates ? Turns<kColumns>::Bytes(rows / kStrip) : 0);
}

template <int kColumns>
struct BackwardTiles {
  bf16 *q, *k, *v, *dy, *y, *ds;
  float *lse, *delta;
  Turns<kColumns> turns;

  __device__ BackwardTiles(uint4* shared, int rows) {
    q = reinterpret_cast<bf16*>(shared);
    k = q + rows * kColumns;
    v = k + rows * kColumns;
    dy = v + rows * kColumns;
    y = dy + rows * kColumns;
    ds = y + rows * kColumns;
    lse = reinterpret_cast<float*>(ds + rows * kBlock);
    delta = lse + rows;
    turns.fine = reinterpret_cast<float2*>(delta + rows);
    turns.coarse = turns.fine + kStrip * Turns<kColumns>::kStride;
  }
};

// Starts all copies, a group for each block of queries with the keys that it sees.
template <int kColumns>
__device__ __forceinline__ void StartCopies(const Heads& h, const Place& at,
                                            const BackwardTiles<kColumns>& tiles, int rows,
                                            const bf16* qkv, const bf16* dy, const bf16* y) {
#pragma unroll 1
  for (int block = 0; block < kMostBlocks; ++block) {
    const int first = block * kBlock, count = min(kBlock, rows - first);
    if (count > 0) {
      const int begin = h.causal ? first : 0, keys = h.causal ? count : rows;
      const bf16* const q = qkv + at.qkv;
      if (h.causal || block == 0) {
        CopyRows<kColumns>(tiles.k, begin, q + at.hidden, at.stride, begin, keys, h.time);
        CopyRows<kColumns>(tiles.v, begin, q + 2 * at.hidden, at.stride, begin, keys, h.time);
      }
      CopyRows<kColumns>(tiles.q, first, q, at.stride, first, count, h.time);
      CopyRows<kColumns>(tiles.dy, first, dy + at.y, at.hidden, first, count, h.time);
      CopyRows<kColumns>(tiles.y, first, y + at.y, at.hidden, first, count, h.time);
    }
    CommitCopies();
  }
}

__device__ __forceinline__ void WaitForBlock(int block) {
  static_assert(kMostBlocks == 4);
  if (block == 0) {
    WaitForCopies<3>();
  } else if (block == 1) {
    WaitForCopies<2>();
  } else if (block == 2) {
    WaitForCopies<1>();
  } else {
    WaitForCopies<0>();
  }
}

// delta = sum of dy y of rows [first, first + count).
template <int kColumns>
__device__ __forceinline__ void FillDelta(const BackwardTiles<kColumns>& tiles, int first,
                                          int count) {
  constexpr int kChunks = kColumns / kChunk<bf16>;
  // A multiple of 32: whole warps go round.
  for (int i = threadIdx.x; i < count * kChunks; i += blockDim.x) {
    const int row = first + i / kChunks, at = ChunkAt<bf16, kColumns>(row, i % kChunks);
    const float sum = RowDot<kColumns>(cuda::LoadPack(tiles.dy + at), cuda::LoadPack(tiles.y + at));
    if (i % kChunks == 0) tiles.delta[row] = sum;
  }
}

// dq of the block of queries from `first` on, `count` of them, out of ds.
template <int kColumns>
__device__ __forceinline__ void FinishQueries(const Heads& h, const BackwardTiles<kColumns>& tiles,
                                              int rows, int first, int count, bf16* dq,
                                              int64_t stride) {
  // A warp takes a strip, or half of its columns: pairs of columns stay together.
  constexpr int kParts = kColumns / 32, kTiles = 4;
  const auto column_of = [](int part, int t) {
    return t / 2 * (kColumns / 2) + (part * 2 + t % 2) * 8;
  };
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int i = WarpId(); i < count / kStrip * kParts; i += warps) {
    // The longest strips first.
    const int strip = count / kStrip - 1 - i / kParts, part = i % kParts;
    const int query = first + strip * kStrip;
    const int keys = h.causal ? query + kStrip : rows;
    float sums[kTiles][4] = {};
    for (int key = 0; key < keys; key += kStrip) {
      const Narrow::Left left = LoadLeftTransposed<kBlock>(tiles.ds, key, strip * kStrip);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        Narrow::Right right[2];
        LoadRight<Narrow, kColumns>(right, tiles.k, key, column_of(part, 2 * side));
        Narrow::Multiply(sums[2 * side], left, right[0]);
        Narrow::Multiply(sums[2 * side + 1], left, right[1]);
      }
    }
    const auto columns = [&](int t) { return column_of(part, t); };
    if (h.rotates) RotateBack(tiles.turns, query, sums, columns);
    StoreStrip(sums, h.scale, h.scale, dq, stride, query, h.time, columns);
  }
}

template <int kColumns, int kStrips>
constexpr int kBackwardWarps = kColumns == 64 && kStrips == 1 ? 4 : kMostWarps;

template <int kColumns, int kStrips>
__global__ void __launch_bounds__(kBackwardWarps<kColumns, kStrips>* kWarp,
                                  kStrips == 2 ? 1 : (kColumns == 32 ? 2 : 3))
    BackwardKernel(const __grid_constant__ Heads h, const bf16* __restrict__ dy,
                   const bf16* __restrict__ qkv, const bf16* __restrict__ y,
                   const float* __restrict__ lse, bf16* __restrict__ dqkv) {
  extern __shared__ uint4 shared[];
  const int strips = (h.time + kStrip - 1) / kStrip, rows = strips * kStrip;
  const BackwardTiles<kColumns> tiles(shared, rows);
  const Place at = PlaceOf<kColumns>(h, blockIdx.x);
  StartCopies(h, at, tiles, rows, qkv, dy, y);
  for (int i = threadIdx.x; i < rows; i += blockDim.x) {
    tiles.lse[i] = i < h.time ? lse[at.lse + i] : 0.0f;
  }
  if (h.rotates) {
    tiles.turns.FillFine(h);
    tiles.turns.FillCoarse(h, 0, strips);
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  KeysWarp<Narrow, kColumns, kStrips> w;
  typename KeysWarp<Narrow, kColumns, kStrips>::Piece piece;
  piece.keys = tiles.k;
  piece.values = tiles.v;
  piece.queries = tiles.q;
  piece.dy = tiles.dy;
  piece.lse = tiles.lse;
  piece.delta = tiles.delta;
  piece.ds = tiles.ds;
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
    piece.key[m] = piece.key_row[m] = (WarpId() + m * warps) * kStrip;
  }
  // How many of the warp's strips are there, and how many of them see queries up to `last`.
  const auto active = [&](int last) {
    int count = 0;
#pragma unroll
    for (int m = 0; m < kStrips; ++m) {
      count += piece.key[m] < rows && (!h.causal || piece.key[m] <= last);
    }
    return count;
  };
  for (int block = 0; block * kBlock < rows; ++block) {
    const int first = block * kBlock, count = min(kBlock, rows - first);
    WaitForBlock(block);
    __syncthreads();
    FillDelta(tiles, first, count);
    if (h.rotates) {
      bf16* const q = tiles.q + first * kColumns;
      bf16* const k = tiles.k + first * kColumns;
      if (h.causal) {
        RotateRows(tiles.turns, first, count, q, k);
      } else {
        RotateRows(tiles.turns, first, count, q);
        if (block == 0) RotateRows(tiles.turns, 0, rows, tiles.k);
      }
    }
    __syncthreads();
    int begin = h.causal ? max(0, piece.key[0] - first) : 0;
    while (begin < count) {
      piece.row = piece.query = first + begin;
      piece.column = begin;
      if (count - begin >= 2 * kStrip) {
        piece.active = active(piece.query + 2 * kStrip - 1);
        w.template Add<2>(h, piece);
        begin += 2 * kStrip;
      } else {
        piece.active = active(piece.query + kStrip - 1);
        w.template Add<1>(h, piece);
        begin += kStrip;
      }
    }
    __syncthreads();
    FinishQueries(h, tiles, rows, first, count, dqkv + at.qkv, at.stride);
  }
  const auto columns = [](int t) { return t * 8; };
#pragma unroll
  for (int m = 0; m < kStrips; ++m) {
    if (piece.key[m] >= rows) continue;
    if (h.rotates) RotateBack(tiles.turns, piece.key[m], w.dk[m], columns);
    StoreStrip(w.dk[m], h.scale, h.scale, dqkv + at.qkv + at.hidden, at.stride, piece.key[m],
               h.time, columns);
    StoreStrip(w.dv[m], 1.0f, 1.0f, dqkv + at.qkv + 2 * at.hidden, at.stride, piece.key[m], h.time,
               columns);
  }
}

template <int kColumns>
int Forward(const AttentionCall& call, cudaStream_t stream) {
  constexpr int kFew = 5;
  const Heads h = HeadsOf(call);
  const int warps = std::min(kMostWarps, static_cast<int>(CeilDiv(call.time, kStrip)));
  return Launch(warps <= kFew ? ForwardKernel<kColumns, kFew> : ForwardKernel<kColumns, kMostWarps>,
                dim3(static_cast<unsigned>(call.items * call.heads)), warps * kWarp,
                ForwardBytes<kColumns>(call.time, h.rotates), stream, h,
                static_cast<const bf16*>(call.qkv), static_cast<bf16*>(call.y), call.lse);
}

template <int kColumns, int kStrips>
int Backward(const AttentionCall& call, cudaStream_t stream) {
  const Heads h = HeadsOf(call);
  const int warps = static_cast<int>(CeilDiv(call.time, kStrip * kStrips));
  return Launch(BackwardKernel<kColumns, kStrips>,
                dim3(static_cast<unsigned>(call.items * call.heads)), warps * kWarp,
                BackwardBytes<kColumns>(call.time, h.rotates), stream, h,
                static_cast<const bf16*>(call.dy), static_cast<const bf16*>(call.qkv),
                static_cast<const bf16*>(call.y), static_cast<const float*>(call.lse),
                static_cast<bf16*>(call.dqkv));
}

}  // namespace

bool WholeHeadsFit(int64_t time, int64_t width) {
  return time <= kMostTime && (width == 32 || width == 64);
}

int WholeHeadsForward(const AttentionCall& call, cudaStream_t stream) {
  return call.width == 32 ? Forward<32>(call, stream) : Forward<64>(call, stream);
}

int WholeHeadsBackward(const AttentionCall& call, cudaStream_t stream) {
  // Two strips a warp halve the loads of what all warps multiply with; short heads rather have more
  // warps.
  if (call.width == 32) {
    return call.time <= 128 ? Backward<32, 1>(call, stream) : Backward<32, 2>(call, stream);
  }
  return call.time <= 64 ? Backward<64, 1>(call, stream) : Backward<64, 2>(call, stream);
}

}  // namespace weft::attention
