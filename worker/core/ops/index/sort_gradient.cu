// The embedding's gradient for large tables, in four steps.
//   Prepare: the table becomes zeros; digits of the ids are counted, chunk by chunk.
//   Scatter: positions are sorted by a digit of their id, stably, least digit first (Satish,
//   Harris,
//     Garland: "Designing efficient sorting algorithms for manycore GPUs", IPDPS 2009). A chunk's
//     place for a digit follows from the counts; each pass counts the next one's digits, and whole
//     numbers may be counted in any order.
//   Slice: slices of the sorted list are added up side by side, in order. A table row whose list
//     lies in one slice is done; parts of others are left as partials.
//   Join: the partials of a row are added.
// An id outside of the table sorts behind all rows and counts nowhere.
#include <algorithm>

#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/index/gradients.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::Pack;

// ---- Sorting.

constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kRounds = 4;                      // positions a thread
constexpr int kChunk = kSortThreads * kRounds;  // positions a block
constexpr int kMostBits = 8;                    // of a digit
constexpr int kDigits = 1 << kMostBits;
constexpr unsigned kPrepareBlocks = 1056;  // eight for each processor of a large GPU

struct Ids {
  const int32_t* id;
  int32_t count, rows;

  // What position `i` sorts by.
  __device__ int32_t key(int32_t i) const {
    const int32_t own = id[i];
    return own >= 0 && own < rows ? own : rows;
  }
};

// Counts are [pass][chunk][digit]; those of the first pass are made here, the others zeroed.
__global__ void __launch_bounds__(kSortThreads)
    PrepareKernel(const Ids ids, int32_t chunks, int bits, int32_t* counts, int64_t all_counts,
                  float* out, int64_t fours, int64_t table) {
  __shared__ int32_t count[kDigits];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSortThreads;
  if (blockIdx.x < chunks) {
    for (int d = threadIdx.x; d < kDigits; d += kSortThreads) count[d] = 0;
    __syncthreads();
    const int32_t begin = static_cast<int32_t>(blockIdx.x) * kChunk;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int32_t at = r * kSortThreads + static_cast<int32_t>(threadIdx.x);
      if (at < ids.count - begin) atomicAdd(&count[ids.key(begin + at) & ((1 << bits) - 1)], 1);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < kDigits; d += kSortThreads) {
      counts[static_cast<int64_t>(blockIdx.x) * kDigits + d] = count[d];
    }
  }
  for (int64_t i = int64_t{chunks} * kDigits + first; i < all_counts; i += step) counts[i] = 0;
  for (int64_t i = first; i < fours; i += step) {
    reinterpret_cast<float4*>(out)[i] = make_float4(0, 0, 0, 0);
  }
  for (int64_t i = fours * 4 + first; i < table; i += step) out[i] = 0;
}

struct Pass {
  const int32_t *keys, *positions;  // null: the ids themselves, in their order
  int32_t *keys_out, *positions_out;
  const int32_t* counts;
  int32_t* next_counts;  // null: this is the last pass
  int shift, bits;
};

// The number of positions before this chunk's with digit threadIdx.x: all with a lower digit, and
// those of earlier chunks with the same. For all threads; above kDigits - 1 of no meaning.
__device__ __forceinline__ int32_t PlaceOfDigit(const int32_t* counts, int32_t chunks,
                                                int32_t chunk, int32_t* warp_sum) {
  int32_t all = 0, before = 0;
  if (threadIdx.x < kDigits) {
#pragma unroll 16
    for (int32_t c = 0; c < chunks; ++c) {
      const int32_t here = counts[static_cast<int64_t>(c) * kDigits + threadIdx.x];
      all += here;
      before += c < chunk ? here : 0;
    }
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t sum = all;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int32_t other = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) warp_sum[warp] = sum;
  __syncthreads();
  sum -= all;
  for (int w = 0; w < warp; ++w) sum += warp_sum[w];
  return sum + before;
}

__global__ void __launch_bounds__(kSortThreads)
    ScatterKernel(const Ids ids, const Pass pass, int32_t chunks) {
  __shared__ int32_t seen[kSortWarps][kDigits];  // by this warp
  __shared__ int32_t place[kDigits];
  __shared__ int32_t warp_sum[kSortWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int mask = (1 << pass.bits) - 1;
  for (int i = threadIdx.x; i < kSortWarps * kDigits; i += kSortThreads) (&seen[0][0])[i] = 0;
  // A warp's positions follow each other.
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kChunk + warp * (kWarp * kRounds) + lane;
  int32_t key[kRounds], position[kRounds], rank[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int32_t i = begin + r * kWarp;
    key[r] = -1;
    if (i < 0 || i >= ids.count) continue;
    key[r] = pass.keys != nullptr ? pass.keys[i] : ids.key(i);
    position[r] = pass.keys != nullptr ? pass.positions[i] : i;
  }
  const int32_t own_place =
      PlaceOfDigit(pass.counts, chunks, static_cast<int32_t>(blockIdx.x), warp_sum);
  if (threadIdx.x < kDigits) place[threadIdx.x] = own_place;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int digit = key[r] < 0 ? -1 : key[r] >> pass.shift & mask;
    const unsigned same = __match_any_sync(~0u, digit);
    const int earlier = __popc(same & ((1u << lane) - 1));
    const int32_t before = digit < 0 ? 0 : seen[warp][digit];
    rank[r] = before + earlier;
    __syncwarp();
    if (digit >= 0 && earlier == 0) seen[warp][digit] = before + __popc(same);
    __syncwarp();
  }
  __syncthreads();
  // Numbers of a warp's positions become those of the warps before it.
  if (threadIdx.x < kDigits) {
    int32_t sum = place[threadIdx.x];
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) {
      const int32_t here = seen[w][threadIdx.x];
      seen[w][threadIdx.x] = sum;
      sum += here;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (key[r] < 0) continue;
    const int32_t to = seen[warp][key[r] >> pass.shift & mask] + rank[r];
    pass.keys_out[to] = key[r];
    pass.positions_out[to] = position[r];
    if (pass.next_counts == nullptr) continue;
    const int next = key[r] >> (pass.shift + pass.bits) & mask;
    atomicAdd(&pass.next_counts[static_cast<int64_t>(to / kChunk) * kDigits + next], 1);
  }
}

// ---- Adding up.

constexpr int kThreads = 256;
constexpr int kSlice = 32;  // sorted positions
constexpr int kAhead = 8;   // rows of dy that are asked for at once
constexpr int kLeastLanes = 8;
constexpr int kMostSlices = kThreads / kLeastLanes;  // of a block
constexpr int kJoinLanes = 64;                       // threads across, of four columns each
constexpr int kJoinGroups = kThreads / kJoinLanes;

struct Sorted {
  const int32_t *keys, *positions;
  int32_t count, rows;
  float* out;
  float* partial;  // [slice][first or other run][width]
  int64_t width;
  int lanes;
  bool fours;   // whether four columns of sums may be moved at once
  bool packed;  // whether 16 bytes of dy may be read at once, and that too
};

template <typename T>
__device__ __forceinline__ void LoadColumns(const T* row, int64_t column, const Sorted& s,
                                            Pack<T>* pack) {
  if (s.packed) {
    *pack = cuda::LoadPack(row + column);
    return;
  }
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) {
    if (column + k < s.width) pack->value[k] = row[column + k];
  }
}

template <int kSize>
__device__ __forceinline__ void StoreSums(float* to, int64_t column, const Sorted& s,
                                          const float (&sum)[kSize]) {
  if (s.packed) {
#pragma unroll
    for (int c = 0; c < kSize; c += 4) {
      reinterpret_cast<float4*>(to)[c / 4] =
          make_float4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
    }
    return;
  }
#pragma unroll
  for (int c = 0; c < kSize; ++c) {
    if (column + c < s.width) to[c] = sum[c];
  }
}

// s.lanes threads a slice and strip. A run is what a slice has of one row's list. One that is the
// whole list goes to the table, others to the slice's partials.
template <typename T>
__global__ void __launch_bounds__(kThreads) SliceKernel(const T* dy, const Sorted s) {
  constexpr int kSize = Pack<T>::kSize;
  // One more on each side, whose keys say whether a list goes on there.
  __shared__ int32_t keys[kMostSlices * kSlice + 2];
  __shared__ int32_t positions[kMostSlices * kSlice + 2];
  const int slices = kThreads / s.lanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * slices * kSlice - 1;
  for (int i = threadIdx.x; i < slices * kSlice + 2; i += kThreads) {
    const bool inside = first + i >= 0 && first + i < s.count;
    keys[i] = inside ? s.keys[first + i] : -1;
    positions[i] = inside ? s.positions[first + i] : 0;
  }
  __syncthreads();
  const int own = threadIdx.x / s.lanes;
  const int64_t column =
      (static_cast<int64_t>(blockIdx.y) * s.lanes + threadIdx.x % s.lanes) * kSize;
  if (column >= s.width) return;
  const int begin = own * kSlice + 1;
  const auto counts = [&](int i) { return keys[i] >= 0 && keys[i] < s.rows; };
  int end = begin + kSlice;
  while (end > begin && !counts(end - 1)) --end;
  float* const partial =
      s.partial + (static_cast<int64_t>(blockIdx.x) * slices + own) * 2 * s.width + column;
  float sum[kSize] = {};
  int run = begin;
  for (int p = begin; p < end; p += kAhead) {
    Pack<T> pack[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (p + k < end) LoadColumns(dy + positions[p + k] * s.width, column, s, &pack[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int at = p + k;
      if (at >= end) break;
#pragma unroll
      for (int c = 0; c < kSize; ++c) sum[c] += cuda::Load(pack[k].value[c]);
      const int32_t row = keys[at];
      if (at + 1 < end && keys[at + 1] == row) continue;
      const bool whole = keys[run - 1] != row && keys[at + 1] != row;
      float* const to =
          whole ? s.out + row * s.width + column : partial + (run == begin ? 0 : s.width);
      StoreSums(to, column, s, sum);
#pragma unroll
      for (int c = 0; c < kSize; ++c) sum[c] = 0;
      run = at + 1;
    }
  }
}

// Block (slice, strip): the row whose list begins in this slice and goes on in the next.
__global__ void __launch_bounds__(kThreads) JoinKernel(const Sorted s) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlice, end = begin + kSlice;
  if (end >= s.count) return;
  const int32_t row = s.keys[end - 1], next = s.keys[end], first = s.keys[begin];
  const int32_t before = begin > 0 ? s.keys[begin - 1] : -1;
  if (row == s.rows || next != row || before == row) return;
  // How many slices it goes on in: they follow each other.
  int64_t more = 0;
  while (true) {
    const int64_t at = end + (more + threadIdx.x) * kSlice;
    const int found = __syncthreads_count(at < s.count && s.keys[at] == row ? 1 : 0);
    more += found;
    if (found < kThreads) break;
  }
  const int lane = threadIdx.x % kJoinLanes, group = threadIdx.x / kJoinLanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kJoinLanes + lane) * 4;
  const float* const partial = s.partial + 2 * static_cast<int64_t>(blockIdx.x) * s.width;
  float sum[4] = {};
#pragma unroll 4
  for (int64_t j = group; j <= more; j += kJoinGroups) {
    const int64_t part = j == 0 ? (first == row ? 0 : 1) : 2 * j;
    const float* const from = partial + part * s.width + column;
    if (s.fours && column < s.width) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (column + c < s.width) sum[c] += from[c];
      }
    }
  }
  __shared__ float met[kJoinGroups][4][kJoinLanes];
#pragma unroll
  for (int c = 0; c < 4; ++c) met[group][c][lane] = sum[c];
  __syncthreads();
  if (group != 0) return;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float total = met[0][c][lane];
#pragma unroll
    for (int g = 1; g < kJoinGroups; ++g) total += met[g][c][lane];
    if (column + c < s.width) s.out[row * s.width + column + c] = total;
  }
}

template <typename T>
void LaunchSlices(const SortCut& cut, const T* dy, Sorted s, cudaStream_t stream) {
  s.fours = s.width % 4 == 0 && cuda::IsAligned(s.out);
  s.packed = s.fours && s.width % Pack<T>::kSize == 0 && cuda::IsAligned(dy);
  const dim3 slices(static_cast<unsigned>(CeilDiv(cut.slices, kThreads / cut.lanes)),
                    static_cast<unsigned>(cut.strips));
  SliceKernel<T><<<slices, kThreads, 0, stream>>>(dy, s);
  const dim3 joins(static_cast<unsigned>(cut.slices),
                   static_cast<unsigned>(CeilDiv(s.width, kJoinLanes * 4)));
  JoinKernel<<<joins, kThreads, 0, stream>>>(s);
}

}  // namespace

SortCut CutSort(const EmbeddingState& s, DType dtype) {
  SortCut cut;
  const int64_t packs = CeilDiv(s.width, 16 / static_cast<int64_t>(SizeOf(dtype)));
  cut.lanes = kLeastLanes;
  while (cut.lanes < kThreads && cut.lanes < packs) cut.lanes *= 2;
  cut.strips = CeilDiv(packs, int64_t{cut.lanes});
  cut.chunks = CeilDiv(s.ids, int64_t{kChunk});
  cut.slices = CeilDiv(s.ids, int64_t{kSlice});
  int bits = 1;
  while (s.rows >> bits != 0) ++bits;  // keys are up to s.rows
  cut.passes = static_cast<int>(CeilDiv(bits, kMostBits));
  cut.bits = static_cast<int>(CeilDiv(bits, cut.passes));
  cut.counts = 4 * CeilDiv(s.ids, 4) * 4;
  cut.partials = cut.counts + cut.passes * cut.chunks * kDigits;
  cut.words = cut.partials + 2 * cut.slices * s.width;
  return cut;
}

void LaunchSort(const EmbeddingState& s, const SortCut& cut, const KernelArgs& args) {
  const cudaStream_t stream = cuda::StreamOf(args);
  auto* const words = static_cast<int32_t*>(args.scratch);
  const Ids ids = {args.in[1].as<const int32_t>(), static_cast<int32_t>(s.ids),
                   static_cast<int32_t>(s.rows)};
  const auto chunks = static_cast<int32_t>(cut.chunks);
  const int64_t list = cut.counts / 4;  // each of keys and positions, twice
  int32_t* const counts = words + cut.counts;
  float* const out = args.out[0].as<float>();
  const int64_t each = cut.chunks * kDigits;
  PrepareKernel<<<std::max(kPrepareBlocks, static_cast<unsigned>(chunks)), kSortThreads, 0,
                  stream>>>(ids, chunks, cut.bits, counts, cut.passes * each, out,
                            cuda::IsAligned(out) ? s.rows * s.width / 4 : 0, s.rows * s.width);
  if (chunks == 0) return;
  const int32_t *keys = nullptr, *positions = nullptr;
  for (int p = 0; p < cut.passes; ++p) {
    int32_t* const keys_out = words + 2 * (p % 2) * list;
    const Pass pass = {keys,
                       positions,
                       keys_out,
                       keys_out + list,
                       counts + p * each,
                       p + 1 < cut.passes ? counts + (p + 1) * each : nullptr,
                       p * cut.bits,
                       cut.bits};
    ScatterKernel<<<static_cast<unsigned>(chunks), kSortThreads, 0, stream>>>(ids, pass, chunks);
    keys = pass.keys_out;
    positions = pass.positions_out;
  }
  const Sorted sorted = {
      keys,    positions, ids.count, ids.rows, out, reinterpret_cast<float*>(words + cut.partials),
      s.width, cut.lanes, false,     false};
  if (args.in[0].dtype == DType::kBF16) {
    LaunchSlices(cut, args.in[0].as<const bf16>(), sorted, stream);
  } else {
    LaunchSlices(cut, args.in[0].as<const float>(), sorted, stream);
  }
}

}  // namespace weft
