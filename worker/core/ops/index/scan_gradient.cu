// The embedding's gradient for small tables. Block (table row, segment of positions, strip of
// columns): it lists the positions of its row among the next kWindow, in order, and groups of
// threads add up the listed rows of dy in turns. Groups meet in shared memory, segments, which are
// the blocks of a cluster, in its first block.
#include <algorithm>

#include "worker/core/ops/cuda_cluster.cuh"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/index/gradients.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using cuda::Pack;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kIds = 4;                   // that a thread looks at
constexpr int kWindow = kThreads * kIds;  // positions
constexpr int kAhead = 8;                 // rows of dy that are asked for at once
constexpr int kLeastLanes = 4;
constexpr int64_t kBlocksWanted = 264;  // two for each processor of a large GPU

struct Scan {
  const int32_t* ids;
  float* out;
  int64_t count, width, segment;
  int lanes, segments;
  bool ids_aligned;  // whether four may be read at once
};

// Four ids from position `i` on; -1 from `end` on.
__device__ __forceinline__ void LoadIds(const Scan& s, int64_t i, int64_t end,
                                        int32_t (&id)[kIds]) {
  if (s.ids_aligned && i + kIds <= end) {
    const int4 four = *reinterpret_cast<const int4*>(s.ids + i);
    id[0] = four.x, id[1] = four.y, id[2] = four.z, id[3] = four.w;
    return;
  }
#pragma unroll
  for (int k = 0; k < kIds; ++k) id[k] = i + k < end ? s.ids[i + k] : -1;
}

// Columns [column, column + kSize) of a row of dy; beyond the row, anything.
template <bool kPacked, typename T>
__device__ __forceinline__ void LoadColumns(const T* row, int64_t column, const Scan& s,
                                            Pack<T>* pack) {
  if constexpr (kPacked) {
    *pack = cuda::LoadPack(row + column);
  } else {
#pragma unroll
    for (int k = 0; k < Pack<T>::kSize; ++k) {
      if (column + k < s.width) pack->value[k] = row[column + k];
    }
  }
}

template <bool kPacked, typename T>
__global__ void __launch_bounds__(kThreads) ScanKernel(const T* dy, const Scan s) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ int32_t found[kWindow];
  __shared__ int32_t warp_count[kWarps];
  __shared__ alignas(16) float met[kThreads * kSize];
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int64_t strip = static_cast<int64_t>(blockIdx.z) * s.lanes * kSize;
  const int across = threadIdx.x % s.lanes, group = threadIdx.x / s.lanes;
  const int groups = kThreads / s.lanes;
  const int64_t column = strip + across * kSize;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t end = min(s.count, (static_cast<int64_t>(blockIdx.y) + 1) * s.segment);
  float sum[kSize] = {};
  for (int64_t at = blockIdx.y * s.segment; at < end; at += kWindow) {
    int32_t id[kIds];
    LoadIds(s, at + static_cast<int64_t>(threadIdx.x) * kIds, end, id);
    int own = 0;
#pragma unroll
    for (int k = 0; k < kIds; ++k) own += id[k] == row ? 1 : 0;
    int place = own;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(~0u, place, offset);
      if (lane >= offset) place += other;
    }
    if (lane == kWarp - 1) warp_count[warp] = place;
    place -= own;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += warp_count[w];
      all += warp_count[w];
    }
#pragma unroll
    for (int k = 0; k < kIds; ++k) {
      if (id[k] == row) found[place++] = static_cast<int32_t>(threadIdx.x) * kIds + k;
    }
    __syncthreads();
    if (column < s.width) {
      for (int k = group; k < all; k += kAhead * groups) {
        Pack<T> pack[kAhead];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int here = k + u * groups;
          if (here < all) {
            LoadColumns<kPacked>(dy + (at + found[here]) * s.width, column, s, &pack[u]);
          }
        }
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          if (k + u * groups >= all) break;
#pragma unroll
          for (int c = 0; c < kSize; ++c) sum[c] += cuda::Load(pack[u].value[c]);
        }
      }
    }
    // The next window overwrites the list.
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) met[threadIdx.x * kSize + k] = sum[k];
  __syncthreads();
  const int columns = s.lanes * kSize;  // what follows is one thread's alone, column by column
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    float total = met[c];
    for (int g = 1; g < groups; ++g) total += met[g * columns + c];
    met[c] = total;
  }
#if WEFT_CUDA_CLUSTERS
  if (s.segments > 1) {
    const auto blocks = cooperative_groups::this_cluster();
    blocks.sync();
    if (blocks.block_rank() == 0) {
      for (int c = threadIdx.x; c < columns; c += kThreads) {
        float total = met[c];
#pragma unroll
        for (int i = 1; i < cuda::kMostCluster; ++i) {
          if (i < s.segments) total += *blocks.map_shared_rank(&met[c], i);
        }
        met[c] = total;
      }
    }
    // Nobody leaves while its sums are read.
    blocks.sync();
    if (blocks.block_rank() != 0) return;
  }
#endif
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    if (strip + c < s.width) s.out[row * s.width + strip + c] = met[c];
  }
}

template <typename T>
void LaunchOf(const EmbeddingState& e, const ScanCut& cut, const KernelArgs& args) {
  const T* dy = args.in[0].as<const T>();
  const auto* ids = args.in[1].as<const int32_t>();
  const Scan s = {ids,
                  args.out[0].as<float>(),
                  e.ids,
                  e.width,
                  cut.segment,
                  cut.lanes,
                  static_cast<int>(cut.segments),
                  cuda::IsAligned(ids)};
  const dim3 grid(static_cast<unsigned>(e.rows), static_cast<unsigned>(cut.segments),
                  static_cast<unsigned>(cut.strips));
  const bool packed = e.width % Pack<T>::kSize == 0 && cuda::IsAligned(dy);
  cuda::LaunchClusters(packed ? ScanKernel<true, T> : ScanKernel<false, T>, grid, kThreads,
                       s.segments, cuda::StreamOf(args), dy, s);
}

}  // namespace

ScanCut CutScan(const EmbeddingState& s, DType dtype) {
  ScanCut cut;
  const int64_t packs = CeilDiv(s.width, 16 / static_cast<int64_t>(SizeOf(dtype)));
  const int64_t windows = std::max<int64_t>(1, CeilDiv(s.ids, int64_t{kWindow}));
  while (cut.lanes < kThreads && cut.lanes < packs) cut.lanes *= 2;
  const auto blocks = [&] {
    cut.strips = std::max<int64_t>(1, CeilDiv(packs, int64_t{cut.lanes}));
    return s.rows * cut.strips * cut.segments;
  };
  if (cuda::HasClusters()) {
    while (cut.segments < cuda::kMostCluster && cut.segments * 2 <= windows &&
           blocks() < 4 * kBlocksWanted) {
      cut.segments *= 2;
    }
  }
  while (blocks() < kBlocksWanted && cut.lanes > kLeastLanes) cut.lanes /= 2;
  blocks();
  cut.segment = CeilDiv(windows, cut.segments) * kWindow;
  return cut;
}

void LaunchScan(const EmbeddingState& s, const ScanCut& cut, const KernelArgs& args) {
  args.in[0].dtype == DType::kBF16 ? LaunchOf<bf16>(s, cut, args) : LaunchOf<float>(s, cut, args);
}

}  // namespace weft
