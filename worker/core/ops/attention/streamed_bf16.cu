// streamed_heads.cuh in bf16, with a backward pass of its own: a block owns a tile of keys, as
// there, and makes the part of dq that its keys give too, which saves the launch over queries with
// its two products. Parts of a tile of queries are added in f32 in memory, in the order of falling
// keys: blocks take turns, each waiting for the one whose keys follow. They take their tiles by
// ticket, in that order, so a block waits only for blocks that run already.
#include "worker/core/ops/attention/streamed_heads.cuh"

namespace weft::attention {
namespace {

using cuda::CeilDiv;

constexpr int kStep = kStream<bf16>;  // queries of a step
static_assert(kStep == kStreamWarps * kStrip);

// Scratch: delta; sums of dq, [head][step][warp][tile][lane] of four; how many parts of each head's
// step are added; the next ticket.
struct Scratch {
  float* delta;
  float4* sums;
  int *added, *ticket;
};
int64_t StepsOf(int time) { return CeilDiv(time, kStep); }
int64_t DeltaBytes(const AttentionCall& call) {
  return CeilDiv(call.rows() * static_cast<int64_t>(sizeof(float)), 256) * 256;
}
int64_t SumsBytes(const AttentionCall& call) {
  return call.items * call.heads * StepsOf(call.time) * kStep * call.width *
         static_cast<int64_t>(sizeof(float));
}
// Of `added` and `ticket`.
int64_t TurnCount(const AttentionCall& call) {
  return call.items * call.heads * StepsOf(call.time) + 1;
}
Scratch ScratchOf(const AttentionCall& call) {
  char* const at = static_cast<char*>(call.scratch);
  Scratch s;
  s.delta = reinterpret_cast<float*>(at);
  s.sums = reinterpret_cast<float4*>(at + DeltaBytes(call));
  s.ticket = reinterpret_cast<int*>(at + DeltaBytes(call) + SumsBytes(call));
  s.added = s.ticket + 1;
  return s;
}

// delta = sum of dy y, a chunk of a row a thread, `parts` blocks an item; and nothing is added yet.
constexpr int kDeltaThreads = 256;
template <int kColumns>
__global__ void __launch_bounds__(kDeltaThreads)
    DeltaKernel(const __grid_constant__ Heads h, const bf16* __restrict__ dy,
                const bf16* __restrict__ y, float* __restrict__ delta, unsigned parts,
                int* __restrict__ turns, int64_t turn_count) {
  constexpr unsigned kChunks = kColumns / kChunk<bf16>;
  // There are fewer of these than threads.
  const int64_t turn = int64_t{blockIdx.x} * kDeltaThreads + threadIdx.x;
  if (turn < turn_count) turns[turn] = 0;
  const unsigned heads = static_cast<unsigned>(h.heads), time = static_cast<unsigned>(h.time);
  const unsigned item = blockIdx.x / parts;
  const unsigned chunk = blockIdx.x % parts * kDeltaThreads + threadIdx.x, row = chunk / kChunks;
  // Whole warps go on, for their lanes add up rows.
  const bool there = row < heads * time;
  const int64_t at =
      there ? int64_t{item} * time * heads * kColumns + int64_t{chunk} * kChunk<bf16> : 0;
  const float sum = RowDot<kColumns>(cuda::LoadPack(dy + at), cuda::StreamPack(y + at));
  if (!there || chunk % kChunks != 0) return;
  const unsigned position = row / heads, head = row % heads;
  delta[(int64_t{item} * heads + head) * time + position] = sum;
}

template <int kColumns>
struct OrderedShared {
  using T = bf16;
  static constexpr int kDsBytes = kOwned<T, kColumns> * kStep * static_cast<int>(sizeof(T));
  static constexpr int Bytes(bool rotates) {
    return kDsBytes + StreamShared<T, kColumns>::Bytes(2, rotates);
  }
};

// dq of a step: this block's part, and with the last part the result.
template <int kColumns>
__device__ __forceinline__ void AddQueries(const Heads& h, const bf16* ds, const bf16* keys,
                                           int first_key, int query, bool is_first, bool is_last,
                                           float4* sums_at, const Turns<kColumns>& turns, bf16* dq,
                                           int64_t stride) {
  constexpr int kTiles = kColumns / 8;
  const int row = WarpId() * kStrip;
  float sums[kTiles][4] = {};
  if (!is_first) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float4 x = __ldcg(sums_at + (WarpId() * kTiles + t) * cuda::kWarp + LaneId());
      sums[t][0] = x.x;
      sums[t][1] = x.y;
      sums[t][2] = x.z;
      sums[t][3] = x.w;
    }
  }
  const int seen = query + row + kStrip - first_key;
  const int end = h.causal ? min(seen, kOwned<bf16, kColumns>) : kOwned<bf16, kColumns>;
#pragma unroll 2
  for (int key = 0; key < end; key += kStrip) {
    const Narrow::Left left = LoadLeftTransposed<kStep>(ds, key, row);
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      Narrow::Right right[2];
      LoadRight<Narrow, kColumns>(right, keys, key, t * 8);
      Narrow::Multiply(sums[t], left, right[0]);
      Narrow::Multiply(sums[t + 1], left, right[1]);
    }
  }
  if (is_last) {
    const auto columns = [](int t) { return t * 8; };
    if (h.rotates) RotateBack(turns, row, sums, columns);
    StoreStrip(sums, h.scale, h.scale, dq, stride, query + row, h.time, columns);
    return;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    __stcg(sums_at + (WarpId() * kTiles + t) * cuda::kWarp + LaneId(),
           make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]));
  }
}

template <int kColumns>
__global__ void __launch_bounds__(kStreamThreads, 2)
    BackwardKernel(const __grid_constant__ Heads h, const bf16* __restrict__ dy,
                   const bf16* __restrict__ qkv, const float* __restrict__ lse,
                   const __grid_constant__ Scratch scratch, bf16* __restrict__ dqkv) {
  extern __shared__ uint4 shared[];
  __shared__ int taken;
  if (threadIdx.x == 0) taken = atomicAdd(scratch.ticket, 1);
  __syncthreads();
  constexpr int kRows = kOwned<bf16, kColumns>;
  bf16* const ds = reinterpret_cast<bf16*>(shared);
  const StreamShared<bf16, kColumns> s(
      shared + OrderedShared<kColumns>::kDsBytes / static_cast<int>(sizeof(uint4)), 2);
  const int tiles = (h.time + kRows - 1) / kRows, steps = (h.time + kStep - 1) / kStep;
  const int64_t head = taken / tiles;
  const int tile = tiles - 1 - taken % tiles;
  const Place at = PlaceOf<kColumns>(h, head);
  int* const added = scratch.added + head * steps;
  using Loop = KeysLoop<Narrow, kColumns>;
  const Loop loop = {h, s, at, qkv, dy, lse, scratch.delta, tile * kRows};
  loop.Start();
  typename Loop::Warp w;
  typename Loop::Piece piece = loop.FirstPiece();
  piece.ds = ds;
  // Of the tile with the first part of a step's dq.
  const auto first_tile = [&](int step) {
    return h.causal ? min(step * kStep + kStep - 1, h.time - 1) / kRows : tiles - 1;
  };
  for (int i = loop.begin(); i < steps; ++i) {
    loop.Next(i);
    if (i > loop.begin() && threadIdx.x == 0) {
      // All of the step before is written, as of the barrier in Next.
      Signal(added + i - 1, first_tile(i - 1) - tile + 1);
    }
    loop.Work(i, &w, &piece);
    const int parts = first_tile(i) - tile;
    if (parts > 0 && threadIdx.x == 0) WaitUntil(added + i, parts);
    __syncthreads();
    AddQueries<kColumns>(h, ds, s.owned, tile * kRows, i * kStep, parts == 0, tile == 0,
                         scratch.sums + (head * steps + i) * (kStep * kColumns / 4),
                         s.PassingTurns(i), dqkv + at.qkv, at.stride);
  }
  __syncthreads();
  if (threadIdx.x == 0) Signal(added + steps - 1, first_tile(steps - 1) - tile + 1);
  loop.Finish(&w, piece, dqkv);
}

template <int kColumns>
int Backward(const AttentionCall& call, cudaStream_t stream) {
  const Heads h = HeadsOf(call);
  const Scratch scratch = ScratchOf(call);
  const auto* const dy = static_cast<const bf16*>(call.dy);
  const int64_t chunks = int64_t{call.time} * call.heads * kColumns / kChunk<bf16>;
  const int64_t parts = CeilDiv(chunks, kDeltaThreads);
  const int error =
      Launch(DeltaKernel<kColumns>, dim3(static_cast<unsigned>(call.items * parts)), kDeltaThreads,
             0, stream, h, dy, static_cast<const bf16*>(call.y), scratch.delta,
             static_cast<unsigned>(parts), scratch.ticket, TurnCount(call));
  if (error != 0) return error;
  return Launch(BackwardKernel<kColumns>, StreamGrid<bf16, kColumns>(call), kStreamThreads,
                OrderedShared<kColumns>::Bytes(h.rotates), stream, h, dy,
                static_cast<const bf16*>(call.qkv), static_cast<const float*>(call.lse), scratch,
                static_cast<bf16*>(call.dqkv));
}

}  // namespace

bool StreamedHeadsFit(int64_t width) { return width == 32 || width == 64 || width == 128; }

int64_t StreamedScratch(const AttentionCall& call, DType dtype, bool backward) {
  if (!backward) return 0;
  if (dtype != DType::kBF16) return call.rows() * static_cast<int64_t>(sizeof(float));
  return DeltaBytes(call) + SumsBytes(call) + TurnCount(call) * static_cast<int64_t>(sizeof(int));
}

int StreamedBf16Forward(const AttentionCall& call, cudaStream_t stream) {
  return StreamForwardOf<Narrow>(call, stream);
}

int StreamedBf16Backward(const AttentionCall& call, cudaStream_t stream) {
  if (call.width == 32) return Backward<32>(call, stream);
  return call.width == 64 ? Backward<64>(call, stream) : Backward<128>(call, stream);
}

}  // namespace weft::attention
