// Rows by number on CUDA. The gradient adds up, for each row of the table, the rows of dy whose id
// it is, in the order of their positions, in one of two ways that the shapes choose:
//   Scan (small tables): a block takes a table row and a segment of positions, and looks at every
//   id
//     there; partials of segments are added in order.
//   Sort (large tables): positions are sorted by id, stably: counts by (chunk of positions, id),
//     sums of them over chunks, then ids, give each position its place. Slices of the sorted list
//     are added up side by side; a table row whose list lies in several slices is added last.
// No float is ever added by an atomic.
#include <algorithm>
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/index/state.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::StreamOf;

constexpr int kThreads = 256;

// ---- Forward.

// One element, or 16 bytes, a thread.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const Word* table, const int32_t* ids, Word* out, int64_t rows, int64_t words,
                 int64_t total, Word nan) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  const int64_t id = ids[i / words];
  out[i] = id >= 0 && id < rows ? table[id * words + i % words] : nan;
}

template <typename Word>
void LaunchGather(const EmbeddingState& s, const KernelArgs& args, int64_t words, Word nan) {
  const int64_t total = s.ids * words;
  GatherKernel<Word>
      <<<static_cast<unsigned>(CeilDiv(total, kThreads)), kThreads, 0, StreamOf(args)>>>(
          args.in[0].as<const Word>(), args.in[1].as<const int32_t>(), args.out[0].as<Word>(),
          s.rows, words, total, nan);
}

int LaunchEmbedding(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const EmbeddingState*>(raw);
  if (s.ids * s.width == 0) return 0;
  const int64_t size = static_cast<int64_t>(SizeOf(args.out[0].dtype));
  const bool packs = s.width * size % 16 == 0 && cuda::IsAligned(args.in[0].data) &&
                     cuda::IsAligned(args.out[0].data);
  const uint32_t nan = size == 2 ? 0x7fc07fc0u : 0x7fc00000u;
  if (packs) {
    LaunchGather<uint4>(s, args, s.width * size / 16, make_uint4(nan, nan, nan, nan));
  } else if (size == 2) {
    LaunchGather<uint16_t>(s, args, s.width, static_cast<uint16_t>(nan));
  } else {
    LaunchGather<uint32_t>(s, args, s.width, nan);
  }
  return cuda::LaunchError();
}

// ---- Gradient by scanning.

// Block (table row, segment, strip of kThreads columns).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScanKernel(const T* dy, const int32_t* ids, float* to, int64_t count, int64_t width,
               int64_t segment, int64_t table) {
  __shared__ int32_t found[kThreads];
  __shared__ int32_t warp_count[kThreads / cuda::kWarp];
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int64_t column = static_cast<int64_t>(blockIdx.z) * kThreads + threadIdx.x;
  const int64_t end = min(count, (static_cast<int64_t>(blockIdx.y) + 1) * segment);
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  float sum = 0;
  for (int64_t at = blockIdx.y * segment; at < end; at += kThreads) {
    // The positions of this row among the next kThreads, in order.
    const int64_t i = at + threadIdx.x;
    const bool mine = i < end && ids[i] == row;
    const unsigned votes = __ballot_sync(~0u, mine);
    if (lane == 0) warp_count[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kThreads / cuda::kWarp; ++w) {
      if (w < warp) before += warp_count[w];
      all += warp_count[w];
    }
    if (mine) found[before + __popc(votes & ((1u << lane) - 1))] = static_cast<int32_t>(i);
    __syncthreads();
    if (column < width) {
      int k = 0;
      for (; k + 4 <= all; k += 4) {
        const float a = cuda::Load(dy[found[k] * width + column]);
        const float b = cuda::Load(dy[found[k + 1] * width + column]);
        const float c = cuda::Load(dy[found[k + 2] * width + column]);
        const float d = cuda::Load(dy[found[k + 3] * width + column]);
        sum += (a + b) + (c + d);
      }
      for (; k < all; ++k) sum += cuda::Load(dy[found[k] * width + column]);
    }
    __syncthreads();
  }
  if (column < width) to[blockIdx.y * table + row * width + column] = sum;
}

__global__ void __launch_bounds__(kThreads)
    JoinSegmentsKernel(const float* partial, float* out, int64_t segments, int64_t table) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= table) return;
  float sum = partial[i];
  for (int64_t s = 1; s < segments; ++s) sum += partial[s * table + i];
  out[i] = sum;
}

// ---- Gradient by sorting.

constexpr int kChunk = 1024;  // positions; also threads of the kernels that look at one
constexpr int kSlice = 64;    // sorted positions that one block adds up
constexpr int kEach = 4;      // columns a thread

// counts[chunk][id]: additions of whole numbers, whose order does not matter.
__global__ void __launch_bounds__(kChunk)
    CountKernel(const int32_t* ids, int32_t* counts, int64_t count, int32_t rows) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kChunk + threadIdx.x;
  if (i >= count) return;
  const int32_t id = ids[i];
  if (id >= 0 && id < rows) atomicAdd(counts + static_cast<int64_t>(blockIdx.x) * rows + id, 1);
}

// Counts become numbers of earlier positions with the same id; totals go to start[id].
__global__ void __launch_bounds__(kThreads)
    SumChunksKernel(int32_t* counts, int32_t* start, int64_t chunks, int32_t rows) {
  const int32_t id = static_cast<int32_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (id >= rows) return;
  int32_t sum = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    int32_t* const at = counts + c * rows + id;
    const int32_t here = *at;
    *at = sum;
    sum += here;
  }
  start[id] = sum;
}

// Totals become starts, in one block; start[rows] is the number of positions that count.
__global__ void __launch_bounds__(kChunk) StartsKernel(int32_t* start, int32_t rows) {
  __shared__ int32_t warp_sum[kChunk / cuda::kWarp];
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  int32_t base = 0;
  for (int32_t first = 0; first < rows; first += kChunk) {
    const int32_t id = first + static_cast<int32_t>(threadIdx.x);
    const int32_t own = id < rows ? start[id] : 0;
    int32_t sum = own;
    for (int offset = 1; offset < cuda::kWarp; offset *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == cuda::kWarp - 1) warp_sum[warp] = sum;
    __syncthreads();
    int32_t before = base, all = 0;
    for (int w = 0; w < kChunk / cuda::kWarp; ++w) {
      if (w < warp) before += warp_sum[w];
      all += warp_sum[w];
    }
    if (id < rows) start[id] = before + sum - own;
    base += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) start[rows] = base;
}

__global__ void __launch_bounds__(kChunk)
    PlaceKernel(const int32_t* ids, const int32_t* counts, const int32_t* start, int32_t* position,
                int64_t count, int32_t rows) {
  __shared__ int32_t chunk[kChunk];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kChunk + threadIdx.x;
  const int32_t id = i < count ? ids[i] : -1;
  chunk[threadIdx.x] = id;
  __syncthreads();
  if (id < 0 || id >= rows) return;
  int32_t earlier = 0;
  for (unsigned k = 0; k < threadIdx.x; ++k) earlier += chunk[k] == id ? 1 : 0;
  const int32_t place = start[id] + counts[static_cast<int64_t>(blockIdx.x) * rows + id] + earlier;
  position[place] = static_cast<int32_t>(i);
}

template <typename T>
__device__ __forceinline__ void LoadEach(const T* from, int64_t left, float (&value)[kEach]) {
#pragma unroll
  for (int k = 0; k < kEach; ++k) value[k] = k < left ? cuda::Load(from[k]) : 0.0f;
}

__device__ __forceinline__ void StoreEach(float* to, int64_t left, const float (&value)[kEach]) {
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k < left) to[k] = value[k];
  }
}

// Block (slice, strip): adds up runs of one id. A run that is its row's whole list goes to the
// table, others to partial[2 * slice] (the slice's first run) or partial[2 * slice + 1] (its last).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SliceKernel(const T* dy, const int32_t* ids, const int32_t* start, const int32_t* position,
                float* out, float* partial, int32_t rows, int64_t width) {
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kSlice;
  const int32_t end = min(start[rows], begin + kSlice);
  if (begin >= end) return;
  __shared__ int32_t place[kSlice], id[kSlice];
  if (threadIdx.x < end - begin) {
    place[threadIdx.x] = position[begin + threadIdx.x];
    id[threadIdx.x] = ids[place[threadIdx.x]];
  }
  __syncthreads();
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kEach;
  const int64_t left = width - column;
  if (left <= 0) return;
  float sum[kEach] = {};
  int32_t run = begin;
  constexpr int kAhead = 8;
  for (int32_t p = begin; p < end; p += kAhead) {
    float value[kAhead][kEach];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (p + k < end) LoadEach(dy + place[p + k - begin] * width + column, left, value[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (p + k >= end) break;
#pragma unroll
      for (int c = 0; c < kEach; ++c) sum[c] += value[k][c];
      const int32_t now = id[p + k - begin];
      const int32_t next = p + k + 1;
      if (next < end && id[next - begin] == now) continue;
      const bool whole = start[now] == run && start[now + 1] == next;
      float* const to =
          whole ? out + now * width
                : partial + (2 * static_cast<int64_t>(blockIdx.x) + (run == begin ? 0 : 1)) * width;
      StoreEach(to + column, left, sum);
#pragma unroll
      for (int c = 0; c < kEach; ++c) sum[c] = 0;
      run = next;
    }
  }
}

// Block (slice, strip): the row whose list begins in this slice and goes on in others.
__global__ void __launch_bounds__(kThreads)
    JoinSlicesKernel(const int32_t* ids, const int32_t* start, const int32_t* position, float* out,
                     const float* partial, int32_t rows, int64_t width) {
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kSlice, end = begin + kSlice;
  if (end >= start[rows]) return;
  const int32_t row = ids[position[end - 1]];
  const int32_t first = start[row], last = start[row + 1];
  if (first < begin || last <= end) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= width) return;
  int64_t slice = blockIdx.x;
  float sum = partial[(2 * slice + (first == begin ? 0 : 1)) * width + column];
  for (int32_t at = end; at < last; at += kSlice) sum += partial[2 * ++slice * width + column];
  out[row * width + column] = sum;
}

// ---- What shapes choose.

struct GradState : EmbeddingState {
  bool sorts = false;
  int64_t segments = 1, segment = 0;  // scan
  int64_t chunks = 0, slices = 0;     // sort
};

constexpr int64_t kMostScanned = int64_t{1} << 24;  // ids looked at in all

Bound CheckOperands(const ArrayRef& table, const ArrayRef& ids, const BindArgs& args) {
  for (int i = 0; i < args.in_count; ++i) {
    if (!args.in[i].contiguous()) return {.error = "operands are not contiguous"};
  }
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  if (ids.elements() >= INT32_MAX || table.shape.dim(0) >= INT32_MAX) {
    return {.error = "more than 2^31 - 2 ids or rows"};
  }
  return {};
}

Bound BindEmbedding(const std::string&, const BindArgs& args) {
  Bound bound = CheckOperands(args.in[0], args.in[1], args);
  bound.state = std::make_shared<EmbeddingState>(
      EmbeddingState{args.in[0].shape.dim(0), args.in[0].shape.dim(1), args.in[1].elements()});
  return bound;
}

Bound BindEmbeddingGrad(const std::string&, const BindArgs& args) {
  Bound bound = CheckOperands(args.out[0], args.in[1], args);
  auto s = std::make_shared<GradState>();
  s->rows = args.out[0].shape.dim(0);
  s->width = args.out[0].shape.dim(1);
  s->ids = args.in[1].elements();
  s->sorts = s->rows * s->ids > kMostScanned || s->rows > 65535;
  if (s->sorts) {
    s->chunks = CeilDiv(s->ids, kChunk);
    s->slices = CeilDiv(s->ids, kSlice);
    bound.scratch_bytes =
        (s->chunks * s->rows + s->rows + 1 + s->ids + 3) / 4 * 4 * sizeof(int32_t) +
        2 * s->slices * s->width * static_cast<int64_t>(sizeof(float));
  } else {
    // Enough blocks to fill the device.
    const int64_t wanted = std::max<int64_t>(1, 1056 / std::max<int64_t>(1, s->rows));
    s->segment = std::max<int64_t>(kThreads, CeilDiv(CeilDiv(s->ids, wanted), kThreads) * kThreads);
    s->segments = std::max<int64_t>(1, CeilDiv(s->ids, s->segment));
    if (s->segments > 1) {
      bound.scratch_bytes = s->segments * s->rows * s->width * static_cast<int64_t>(sizeof(float));
    }
  }
  bound.state = std::move(s);
  return bound;
}

unsigned Blocks(int64_t items, int64_t each) { return static_cast<unsigned>(CeilDiv(items, each)); }

template <typename T>
void LaunchScan(const GradState& s, const KernelArgs& args) {
  auto* out = args.out[0].as<float>();
  auto* partial = static_cast<float*>(args.scratch);
  const int64_t table = s.rows * s.width;
  const dim3 grid(static_cast<unsigned>(s.rows), static_cast<unsigned>(s.segments),
                  Blocks(s.width, kThreads));
  ScanKernel<T><<<grid, kThreads, 0, StreamOf(args)>>>(
      args.in[0].as<const T>(), args.in[1].as<const int32_t>(), s.segments > 1 ? partial : out,
      s.ids, s.width, s.segment, table);
  if (s.segments == 1) return;
  JoinSegmentsKernel<<<Blocks(table, kThreads), kThreads, 0, StreamOf(args)>>>(partial, out,
                                                                               s.segments, table);
}

template <typename T>
void LaunchSort(const GradState& s, const KernelArgs& args) {
  const cudaStream_t stream = StreamOf(args);
  const auto* ids = args.in[1].as<const int32_t>();
  auto* out = args.out[0].as<float>();
  const auto rows = static_cast<int32_t>(s.rows);
  auto* counts = static_cast<int32_t*>(args.scratch);
  int32_t* const start = counts + s.chunks * s.rows;
  int32_t* const position = start + s.rows + 1;
  const int64_t words = (s.chunks * s.rows + s.rows + 1 + s.ids + 3) / 4 * 4;
  auto* partial = reinterpret_cast<float*>(counts + words);
  cudaMemsetAsync(counts, 0, static_cast<size_t>(s.chunks * s.rows) * sizeof(int32_t), stream);
  cudaMemsetAsync(out, 0, static_cast<size_t>(s.rows * s.width) * sizeof(float), stream);
  const auto chunks = static_cast<unsigned>(s.chunks), slices = static_cast<unsigned>(s.slices);
  if (chunks > 0) CountKernel<<<chunks, kChunk, 0, stream>>>(ids, counts, s.ids, rows);
  SumChunksKernel<<<Blocks(s.rows, kThreads), kThreads, 0, stream>>>(counts, start, s.chunks, rows);
  StartsKernel<<<1, kChunk, 0, stream>>>(start, rows);
  if (chunks == 0) return;
  PlaceKernel<<<chunks, kChunk, 0, stream>>>(ids, counts, start, position, s.ids, rows);
  SliceKernel<T><<<dim3(slices, Blocks(s.width, kThreads * kEach)), kThreads, 0, stream>>>(
      args.in[0].as<const T>(), ids, start, position, out, partial, rows, s.width);
  JoinSlicesKernel<<<dim3(slices, Blocks(s.width, kThreads)), kThreads, 0, stream>>>(
      ids, start, position, out, partial, rows, s.width);
}

int LaunchEmbeddingGrad(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const GradState*>(raw);
  if (s.rows * s.width == 0) return 0;
  if (args.in[0].dtype == DType::kBF16) {
    s.sorts ? LaunchSort<bf16>(s, args) : LaunchScan<bf16>(s, args);
  } else {
    s.sorts ? LaunchSort<float>(s, args) : LaunchScan<float>(s, args);
  }
  return cuda::LaunchError();
}

}  // namespace

void RegisterIndexCuda(KernelTable* table) {
  table->Add("embedding", DeviceKind::kCuda, {nullptr, BindEmbedding, LaunchEmbedding, true});
  table->Add("embedding_grad", DeviceKind::kCuda,
             {nullptr, BindEmbeddingGrad, LaunchEmbeddingGrad, true});
}

}  // namespace weft
