// Sums, means and maxima on CUDA, in an order that the shape fixes.
//   Rows (nothing kept behind the reduced dimensions): a row's threads take its packs of 16 bytes
//   in
//     turns and meet in a tree. Short rows share a warp, others have a block; long ones are cut
//     into segments whose partials a second launch joins.
//   Few rows of columns: a thread takes a pack of columns and walks down them.
//   Many rows of columns (bias gradients): a block takes a strip of columns and a segment of rows,
//     several of which its threads walk down side by side, then meet in warps and in shared memory.
//     Up to eight blocks of a strip are a cluster: its first one reads the others' partials where
//     they lie. What is beyond a cluster is joined by a second launch.
// Operands that cannot be read in packs take part in the same order, element by element, so a view
// gives the bits of its copy.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_cluster.cuh"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/reduce/row_functions.h"
#include "worker/core/ops/reduce/state.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::ComputeType;
using cuda::DeviceWalk;
using cuda::kWarp;
using cuda::OffsetOf;
using cuda::Pack;
using cuda::StreamOf;
using cuda::ToDevice;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kRowSegment = 16384;  // elements of a row that one block takes
constexpr int64_t kShortRow = 1024;     // up to here rows share blocks

constexpr int kTallThreads = 512;
constexpr int kTallWarps = kTallThreads / kWarp;
constexpr int kCluster = cuda::kMostCluster;
constexpr int64_t kFewRows = 32;         // up to here a thread takes whole columns
constexpr int64_t kManyPacks = 1 << 17;  // of columns, which fill the device by themselves
constexpr int64_t kBlocksWanted = 264;   // two for each processor of a large GPU
constexpr int64_t kMostBlocks = 1056;
constexpr int64_t kLeastSteps = 4;    // down a segment, of each thread
constexpr int64_t kBlockRows = 4096;  // that one block takes while processors idle
constexpr int64_t kMostGroups = 32;   // of clusters, of one strip

struct SumOf {
  template <typename C>
  static __device__ C Start() {
    return C{0};
  }
  template <typename C>
  static __device__ C Of(C a, C b) {
    return a + b;
  }
};
struct MaxOf {
  template <typename C>
  static __device__ C Start() {
    return -static_cast<C>(INFINITY);
  }
  // A NaN wins.
  template <typename C>
  static __device__ C Of(C a, C b) {
    return a > b || a != a ? a : b;
  }
};

// Over groups of `lanes` lanes, a power of two.
template <class R, typename C>
__device__ __forceinline__ C WarpReduce(C x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    x = R::Of(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}

// Thread 0 gets the result.
template <class R, typename C>
__device__ __forceinline__ C BlockReduce(C x) {
  __shared__ C partial[kWarps];
  x = WarpReduce<R>(x, kWarp);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = partial[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) x = R::Of(x, partial[i]);
  return x;
}

// A call's numbers, and how the launch cuts it.
struct Layout {
  DeviceWalk kept, reduced, column;
  int64_t outer, columns, count, segment, segments;
  double scale;   // of the final results
  int lanes_log;  // lanes: rows: of a short row; tall columns: across a strip
  uint32_t strips;
  cuda::Divisor column_packs;  // flat columns
};

// Meets packs `step` elements apart, from element `i` on, while they are whole before `end`; the
// place within a pack is kept apart. Returns the element that is next. kAhead packs are asked for
// before the first is met.
template <class R, int kAhead, typename T>
__device__ __forceinline__ int64_t TakePacks(const T* from, int64_t stride, int64_t i, int64_t end,
                                             int64_t step, int64_t whole,
                                             ComputeType<T> (&x)[Pack<T>::kSize]) {
  constexpr int kSize = Pack<T>::kSize;
  const auto meet = [&](const Pack<T>& pack) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) x[k] = R::Of(x[k], cuda::Load(pack.value[k]));
  };
  for (; i + (kAhead - 1) * step + whole <= end; i += kAhead * step) {
    Pack<T> pack[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) pack[u] = cuda::LoadPack(from + (i + u * step) * stride);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) meet(pack[u]);
  }
  Pack<T> last[kAhead - 1];
#pragma unroll
  for (int u = 0; u < kAhead - 1; ++u) {
    if (i + u * step + whole <= end) last[u] = cuda::LoadPack(from + (i + u * step) * stride);
  }
#pragma unroll
  for (int u = 0; u < kAhead - 1; ++u) {
    if (i + whole > end) break;
    meet(last[u]);
    i += step;
  }
  return i;
}

// ---- Rows.

// What thread `lane` of `lanes` takes of elements [begin, end): pack `lane` and every `lanes`th
// after it. The place within a pack is kept apart until the end.
template <class R, typename T, bool kPacked>
__device__ __forceinline__ ComputeType<T> TakeRow(const T* from, const Layout& l, int64_t begin,
                                                  int64_t end, int lane, int lanes) {
  using C = ComputeType<T>;
  constexpr int kSize = Pack<T>::kSize;
  C x[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) x[k] = R::template Start<C>();
  int64_t i = begin + static_cast<int64_t>(lane) * kSize;
  const int64_t step = static_cast<int64_t>(lanes) * kSize;
  if constexpr (kPacked) {
    i = TakePacks<R, 4>(from, 1, i, end, step, kSize, x);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (i + k < end) x[k] = R::Of(x[k], cuda::Load(from[i + k]));
    }
  } else {
#pragma unroll 1
    for (; i < end; i += step) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (i + k < end) x[k] = R::Of(x[k], cuda::Load(from[OffsetOf(l.reduced, i + k)]));
      }
    }
  }
#pragma unroll
  for (int half = kSize / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) x[k] = R::Of(x[k], x[k + half]);
  }
  return x[0];
}

template <class R, typename T, typename Out, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    ShortRowsKernel(const T* in, Out* out, __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  const int lanes = 1 << l.lanes_log;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) >> l.lanes_log;
  C x = R::template Start<C>();
  if (row < l.outer) {
    x = TakeRow<R, T, kPacked>(in + OffsetOf(l.kept, row), l, 0, l.count, lane, lanes);
  }
  x = WarpReduce<R>(x, lanes);
  if (row < l.outer && lane == 0) out[row] = cuda::Round<Out>(x * static_cast<C>(l.scale));
}

// Block (segment, row); the result is a partial where there are several segments.
template <class R, typename T, typename Out, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    LongRowsKernel(const T* in, Out* out, ComputeType<T>* partial,
                   __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / l.segments;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) % l.segments * l.segment;
  C x = TakeRow<R, T, kPacked>(in + OffsetOf(l.kept, row), l, begin,
                               min(l.count, begin + l.segment), threadIdx.x, kThreads);
  x = BlockReduce<R>(x);
  if (threadIdx.x != 0) return;
  if (l.segments > 1) {
    partial[blockIdx.x] = x;
  } else {
    out[row] = cuda::Round<Out>(x * static_cast<C>(l.scale));
  }
}

template <class R, typename C, typename Out>
__global__ void __launch_bounds__(kThreads)
    JoinRowsKernel(const C* partial, Out* out, int64_t segments, double scale) {
  C x = R::template Start<C>();
  const C* const row = partial + static_cast<int64_t>(blockIdx.x) * segments;
  constexpr int kAhead = 8;
  for (int64_t i = threadIdx.x; i < segments; i += kAhead * kThreads) {
    C part[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      part[u] = i + u * kThreads < segments ? row[i + u * kThreads] : R::template Start<C>();
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) x = R::Of(x, part[u]);
  }
  x = BlockReduce<R>(x);
  if (threadIdx.x == 0) out[blockIdx.x] = cuda::Round<Out>(x * static_cast<C>(scale));
}

// ---- Columns.

// Meets rows [begin, end), every `step`th, of kSize columns: a pack at `column`, or the columns
// from `column` on that are `apart` from each other, the last one again for those behind it.
template <class R, int kAhead, typename T, bool kPacked>
__device__ __forceinline__ void TakeColumns(const T* from, const Layout& l, int64_t begin,
                                            int64_t end, int64_t step, int64_t column, int apart,
                                            ComputeType<T> (&x)[Pack<T>::kSize]) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (kPacked) {
    const T* const base = from + column;
    if (l.reduced.rank <= 1) {
      TakePacks<R, kAhead>(base, l.reduced.strides[0][0], begin, end, step, 1, x);
      return;
    }
#pragma unroll 1
    for (int64_t i = begin; i < end; i += step) {
      const Pack<T> pack = cuda::LoadPack(base + OffsetOf(l.reduced, i));
#pragma unroll
      for (int k = 0; k < kSize; ++k) x[k] = R::Of(x[k], cuda::Load(pack.value[k]));
    }
  } else {
    int64_t offset[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      offset[k] = OffsetOf(l.column, min(column + static_cast<int64_t>(k) * apart, l.columns - 1));
    }
#pragma unroll 1
    for (int64_t i = begin; i < end; i += step) {
      const T* const row = from + OffsetOf(l.reduced, i);
#pragma unroll
      for (int k = 0; k < kSize; ++k) x[k] = R::Of(x[k], cuda::Load(row[offset[k]]));
    }
  }
}

// One thread a pack of columns.
template <class R, typename T, typename Out, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    FlatColumnsKernel(const T* in, Out* out, int64_t packs, __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  constexpr int kSize = Pack<T>::kSize;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= packs) return;
  const int64_t o = l.column_packs.Quotient(static_cast<uint32_t>(at));
  const int64_t column = (at - o * l.column_packs.value) * kSize;
  C x[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) x[k] = R::template Start<C>();
  TakeColumns<R, 4, T, kPacked>(in + OffsetOf(l.kept, o), l, 0, l.count, 1, column, 1, x);
  Out* const to = out + o * l.columns + column;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (column + k < l.columns) to[k] = cuda::Round<Out>(x[k] * static_cast<C>(l.scale));
  }
}

// Block (strip of `outer`, segment): lanes across the strip, the other threads down.
template <class R, typename T, typename Out, bool kPacked>
__global__ void __launch_bounds__(kTallThreads)
    TallColumnsKernel(const T* in, Out* out, ComputeType<T>* partial, int cluster,
                      __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  constexpr int kSize = Pack<T>::kSize;
  const int lanes = 1 << l.lanes_log;
  const int across = threadIdx.x & (lanes - 1), down = threadIdx.x >> l.lanes_log;
  const uint32_t o = blockIdx.x / l.strips;
  const int64_t strip = static_cast<int64_t>(blockIdx.x - o * l.strips) * lanes * kSize;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * l.segment;
  const int64_t end = min(l.count, begin + l.segment);
  C x[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) x[k] = R::template Start<C>();
  // Elements one by one are read side by side by neighboring threads.
  const int64_t column = kPacked ? strip + across * kSize : strip + across;
  if (column < l.columns) {
    TakeColumns<R, 8, T, kPacked>(in + OffsetOf(l.kept, o), l, begin + down, end,
                                  kTallThreads >> l.lanes_log, column, lanes, x);
  }
  // In each warp, then over warps; place [k][lane] is that of `column` in either case.
  __shared__ C met[kTallWarps][kSize][kWarp + kWarp / kSize];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int offset = kWarp / 2; offset >= lanes; offset /= 2) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      x[k] = R::Of(x[k], __shfl_xor_sync(~0u, x[k], offset));
    }
  }
  if (lane < lanes) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) met[warp][k][lane] = x[k];
  }
  __syncthreads();
  __shared__ C sums[kSize * kWarp];
  const int width = lanes * kSize;
  const bool mine = static_cast<int>(threadIdx.x) < width;
  const int k = kPacked ? threadIdx.x % kSize : threadIdx.x >> l.lanes_log;
  C sum = R::template Start<C>();
  if (mine) {
    const int place = kPacked ? threadIdx.x / kSize : threadIdx.x & (lanes - 1);
    sum = met[0][k][place];
#pragma unroll
    for (int i = 1; i < kTallWarps; ++i) sum = R::Of(sum, met[i][k][place]);
  }
#if WEFT_CUDA_CLUSTERS
  if (cluster > 1) {
    const auto blocks = cooperative_groups::this_cluster();
    const bool first = blocks.block_rank() == 0;
    if (mine) sums[threadIdx.x] = sum;
    blocks.sync();
    if (first && mine) {
      C theirs[kCluster];
#pragma unroll
      for (int i = 1; i < kCluster; ++i) {
        theirs[i] =
            i < cluster ? *blocks.map_shared_rank(&sums[threadIdx.x], i) : R::template Start<C>();
      }
#pragma unroll
      for (int i = 1; i < kCluster; ++i) sum = R::Of(sum, theirs[i]);
    }
    // Nobody leaves while its partials are read.
    blocks.sync();
    if (!first) return;
  }
#endif
  const int64_t c = strip + threadIdx.x;
  if (!mine || c >= l.columns) return;
  const int64_t groups = l.segments / cluster;
  if (groups > 1) {
    partial[(o * groups + blockIdx.y / cluster) * l.columns + c] = sum;
  } else {
    out[o * l.columns + c] = cuda::Round<Out>(sum * static_cast<C>(l.scale));
  }
}

// One result a thread.
template <class R, typename C, typename Out>
__global__ void __launch_bounds__(kThreads)
    JoinColumnsKernel(const C* partial, Out* out, int64_t outer, int64_t groups, int64_t columns,
                      double scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= outer * columns) return;
  const C* const from = partial + i / columns * groups * columns + i % columns;
  C x = R::template Start<C>();
  constexpr int kAhead = 8;
  for (int64_t g = 0; g < groups; g += kAhead) {
    C part[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      part[u] = g + u < groups ? from[(g + u) * columns] : R::template Start<C>();
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) x = R::Of(x, part[u]);
  }
  out[i] = cuda::Round<Out>(x * static_cast<C>(scale));
}

// ---- What shapes choose.

enum class Cut { kShortRows, kLongRows, kFlatColumns, kTallColumns };

struct CutState : ReduceState {
  Cut cut = Cut::kShortRows;
  int lanes_log = 0;
  int cluster = 1;  // blocks, a divisor of `segments`
  int64_t strips = 1;
};

void CutRows(CutState* s, int64_t size) {
  if (s->count <= kShortRow) {
    s->cut = Cut::kShortRows;
    while (1 << s->lanes_log < kWarp && size << s->lanes_log < s->count) ++s->lanes_log;
    return;
  }
  s->cut = Cut::kLongRows;
  s->segment = kRowSegment;
  s->segments = CeilDiv(s->count, s->segment);
}

void CutColumns(CutState* s, int64_t size, bool clusters) {
  const int64_t packs = CeilDiv(s->columns, size);
  const bool fills = packs * s->outer >= kManyPacks;
  if (s->count <= kFewRows || fills) {
    s->cut = Cut::kFlatColumns;
    return;
  }
  s->cut = Cut::kTallColumns;
  // Strips as wide as leaves enough blocks.
  s->lanes_log = 5;
  const auto strips = [&] { return CeilDiv(packs, int64_t{1} << s->lanes_log); };
  while (s->lanes_log > 2 && strips() * s->outer * kCluster < kBlocksWanted) --s->lanes_log;
  s->strips = strips();
  const int64_t rows = kTallThreads >> s->lanes_log;  // that a block takes at once
  const int64_t most = std::max<int64_t>(1, s->count / (rows * kLeastSteps));
  const int64_t wanted = CeilDiv(kMostBlocks, s->strips * s->outer);
  while (s->cluster < kCluster && s->cluster < wanted && s->cluster * 2 <= most) s->cluster *= 2;
  int64_t groups = 1;
  if (s->cluster == kCluster && s->strips * s->outer * kCluster < kBlocksWanted / 2) {
    groups = std::min({CeilDiv(s->count, kCluster * kBlockRows),
                       CeilDiv(kBlocksWanted, s->strips * s->outer * kCluster), kMostGroups});
  }
  s->segments = s->cluster * groups;
  s->segment = CeilDiv(s->count, s->segments);
  if (!clusters) s->cluster = 1;
}

// Axes that are reduced; all when none is named.
std::vector<bool> ReducedAxes(int rank, const std::vector<int64_t>& axes) {
  std::vector<bool> reduced(rank, axes.empty());
  for (int64_t axis : axes) reduced[axis < 0 ? axis + rank : axis] = true;
  return reduced;
}

template <Reduction kKind>
Bound BindReduce(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  const int rank = x.shape.rank();
  const std::vector<bool> reduced = ReducedAxes(rank, args.attrs->GetInts("axes"));
  auto s = std::make_shared<CutState>();
  s->kind = kKind;
  s->dtype = x.dtype;
  s->kept.operands = s->reduced.operands = s->column.operands = 1;
  int first_column = rank;
  while (first_column > 0 && (!reduced[first_column - 1] || x.shape.dim(first_column - 1) == 1)) {
    --first_column;
  }
  for (int axis = 0; axis < rank; ++axis) {
    Walk* walk = reduced[axis] ? &s->reduced : axis >= first_column ? &s->column : &s->kept;
    const int64_t stride = x.strides.dim(axis);
    AppendDim(walk, x.shape.dim(axis), &stride);
  }
  s->outer = s->kept.elements;
  s->columns = s->column.elements;
  s->count = s->reduced.elements;
  // Of the shape alone, so that a view gives the bits of its copy.
  const int64_t size = 16 / static_cast<int64_t>(SizeOf(x.dtype));
  s->columns == 1 ? CutRows(s.get(), size) : CutColumns(s.get(), size, cuda::HasClusters());
  Bound bound;
  if (s->segments > s->cluster) {
    const int64_t each = x.dtype == DType::kF64 ? sizeof(double) : sizeof(float);
    bound.scratch_bytes = s->outer * (s->segments / s->cluster) * s->columns * each;
  }
  bound.state = std::move(s);
  return bound;
}

unsigned Blocks(int64_t items, int64_t each) { return static_cast<unsigned>(CeilDiv(items, each)); }

// Whether every address that a pack would be read from is a multiple of 16.
bool StepsAreWhole(const Walk& walk, int64_t size) {
  for (int axis = 0; axis < walk.rank; ++axis) {
    if (walk.strides[0][axis] % size != 0) return false;
  }
  return true;
}
template <typename T>
bool InPacks(const CutState& s, const T* in) {
  constexpr int64_t kSize = Pack<T>::kSize;
  if (!cuda::IsAligned(in) || !StepsAreWhole(s.kept, kSize)) return false;
  if (s.columns == 1) return s.reduced.rank <= 1 && s.reduced.inner_stride(0) == 1;
  return s.column.rank <= 1 && s.column.inner_stride(0) == 1 && s.columns % kSize == 0 &&
         StepsAreWhole(s.reduced, kSize);
}

template <class R, typename T, typename Out, bool kPacked>
void LaunchRows(const CutState& s, const Layout& l, const KernelArgs& args) {
  using C = ComputeType<T>;
  const T* in = args.in[0].as<const T>();
  Out* out = args.out[0].as<Out>();
  const cudaStream_t stream = StreamOf(args);
  if (s.cut == Cut::kShortRows) {
    ShortRowsKernel<R, T, Out, kPacked>
        <<<Blocks(s.outer, kThreads >> s.lanes_log), kThreads, 0, stream>>>(in, out, l);
    return;
  }
  auto* partial = static_cast<C*>(args.scratch);
  LongRowsKernel<R, T, Out, kPacked>
      <<<Blocks(s.outer * s.segments, 1), kThreads, 0, stream>>>(in, out, partial, l);
  if (s.segments == 1) return;
  JoinRowsKernel<R, C, Out>
      <<<Blocks(s.outer, 1), kThreads, 0, stream>>>(partial, out, s.segments, l.scale);
}

template <class R, typename T, typename Out, bool kPacked>
void LaunchTall(const CutState& s, const Layout& l, const KernelArgs& args) {
  using C = ComputeType<T>;
  auto* partial = static_cast<C*>(args.scratch);
  const dim3 grid(Blocks(s.strips * s.outer, 1), static_cast<unsigned>(s.segments));
  cuda::LaunchClusters(TallColumnsKernel<R, T, Out, kPacked>, grid, kTallThreads, s.cluster,
                       StreamOf(args), args.in[0].as<const T>(), args.out[0].as<Out>(), partial,
                       s.cluster, l);
  const int64_t groups = s.segments / s.cluster;
  if (groups == 1) return;
  JoinColumnsKernel<R, C, Out>
      <<<Blocks(s.outer * s.columns, kThreads), kThreads, 0, StreamOf(args)>>>(
          partial, args.out[0].as<Out>(), s.outer, groups, s.columns, l.scale);
}

template <class R, typename T, typename Out, bool kPacked>
void LaunchPacked(const CutState& s, Layout* l, const KernelArgs& args) {
  if (s.columns == 1) return LaunchRows<R, T, Out, kPacked>(s, *l, args);
  if (s.cut == Cut::kTallColumns) return LaunchTall<R, T, Out, kPacked>(s, *l, args);
  const int64_t packs = CeilDiv(s.columns, int64_t{Pack<T>::kSize});
  l->column_packs = cuda::Divisor(packs);
  FlatColumnsKernel<R, T, Out, kPacked>
      <<<Blocks(s.outer * packs, kThreads), kThreads, 0, StreamOf(args)>>>(
          args.in[0].as<const T>(), args.out[0].as<Out>(), s.outer * packs, *l);
}

template <class R, typename T, typename Out>
int LaunchOf(const CutState& s, const KernelArgs& args) {
  Layout l = {.kept = ToDevice(s.kept),
              .reduced = ToDevice(s.reduced),
              .column = ToDevice(s.column),
              .outer = s.outer,
              .columns = s.columns,
              .count = s.count,
              .segment = s.segment,
              .segments = s.segments,
              .scale = s.kind == Reduction::kMean ? 1.0 / static_cast<double>(s.count) : 1.0,
              .lanes_log = s.lanes_log,
              .strips = static_cast<uint32_t>(s.strips),
              .column_packs = {}};
  if (InPacks(s, args.in[0].as<const T>())) {
    LaunchPacked<R, T, Out, true>(s, &l, args);
  } else {
    LaunchPacked<R, T, Out, false>(s, &l, args);
  }
  return cuda::LaunchError();
}

int LaunchReduce(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const CutState*>(raw);
  if (s.outer * s.columns == 0) return 0;
  const bool max = s.kind == Reduction::kMax;
  switch (s.dtype) {
    case DType::kF32:
      return max ? LaunchOf<MaxOf, float, float>(s, args) : LaunchOf<SumOf, float, float>(s, args);
    case DType::kBF16:
      return max ? LaunchOf<MaxOf, bf16, bf16>(s, args) : LaunchOf<SumOf, bf16, float>(s, args);
    default:
      return max ? LaunchOf<MaxOf, double, double>(s, args)
                 : LaunchOf<SumOf, double, double>(s, args);
  }
}

}  // namespace

void RegisterReduceCuda(KernelTable* table) {
  table->Add("sum", DeviceKind::kCuda, {nullptr, BindReduce<Reduction::kSum>, LaunchReduce, true});
  table->Add("mean", DeviceKind::kCuda,
             {nullptr, BindReduce<Reduction::kMean>, LaunchReduce, true});
  table->Add("max", DeviceKind::kCuda, {nullptr, BindReduce<Reduction::kMax>, LaunchReduce, true});
  RegisterRowFunctionsCuda(table);
}

}  // namespace weft
