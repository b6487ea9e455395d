// Reductions on CUDA, in an order that the shape fixes.
//   Rows (nothing kept behind the reduced dimensions): a warp or a block takes a segment of a row;
//     rows of several segments leave partials in scratch, which a second launch adds.
//   Columns: a block takes a strip of columns and a segment of rows; its threads walk down the rows
//     side by side, then meet in a tree. Partials of segments are added in order by a second
//     launch.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/reduce/state.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::ComputeType;
using cuda::DeviceWalk;
using cuda::OffsetOf;
using cuda::StreamOf;
using cuda::ToDevice;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int64_t kRowSegment = 16384;   // elements of a row that one block takes
constexpr int64_t kShortRow = 1024;      // up to here a warp takes the row
constexpr int64_t kBlocksWanted = 1056;  // eight for each processor of a large GPU
constexpr int64_t kLeastRows = 64;       // of a segment of columns

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

template <class R, typename C>
__device__ __forceinline__ C WarpReduce(C x) {
#pragma unroll
  for (int offset = cuda::kWarp / 2; offset > 0; offset /= 2) {
    x = R::Of(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}

// Thread 0 gets the result.
template <class R, typename C>
__device__ __forceinline__ C BlockReduce(C x) {
  __shared__ C partial[kWarps];
  x = WarpReduce<R>(x);
  if (threadIdx.x % cuda::kWarp == 0) partial[threadIdx.x / cuda::kWarp] = x;
  __syncthreads();
  x = partial[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) x = R::Of(x, partial[i]);
  return x;
}

// What a launch of either shape needs.
struct Layout {
  DeviceWalk kept, reduced, column;
  int64_t outer, columns, count, segment, segments;
  double scale;  // of the final results
};

template <class R, typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    ShortRowsKernel(const T* in, Out* out, __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp;
  if (row >= l.outer) return;
  const T* const from = in + OffsetOf(l.kept, row);
  C x = R::template Start<C>();
  for (int64_t i = threadIdx.x % cuda::kWarp; i < l.count; i += cuda::kWarp) {
    x = R::Of(x, cuda::Load(from[OffsetOf(l.reduced, i)]));
  }
  x = WarpReduce<R>(x);
  if (threadIdx.x % cuda::kWarp == 0) out[row] = cuda::Round<Out>(x * static_cast<C>(l.scale));
}

// Block (segment, row); the result is a partial where there are several segments.
template <class R, typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    LongRowsKernel(const T* in, Out* out, ComputeType<T>* partial,
                   __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / l.segments;
  const int64_t segment = static_cast<int64_t>(blockIdx.x) % l.segments;
  const T* const from = in + OffsetOf(l.kept, row);
  const int64_t end = min(l.count, (segment + 1) * l.segment);
  C x = R::template Start<C>();
  for (int64_t i = segment * l.segment + threadIdx.x; i < end; i += kThreads) {
    x = R::Of(x, cuda::Load(from[OffsetOf(l.reduced, i)]));
  }
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
  for (int64_t i = threadIdx.x; i < segments; i += kThreads) x = R::Of(x, row[i]);
  x = BlockReduce<R>(x);
  if (threadIdx.x == 0) out[blockIdx.x] = cuda::Round<Out>(x * static_cast<C>(scale));
}

constexpr int kAcross = 32;
constexpr int kDown = kThreads / kAcross;

// Block (strip, segment, outer): kAcross threads of kVector columns each, kDown rows at a time.
template <class R, typename T, typename Out, int kVector>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(const T* in, Out* out, ComputeType<T>* partial,
                  __grid_constant__ const Layout l) {
  using C = ComputeType<T>;
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kAcross + across) * kVector;
  const int64_t segment = blockIdx.y, o = blockIdx.z;
  const int64_t end = min(l.count, (segment + 1) * l.segment);
  C x[kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) x[k] = R::template Start<C>();
  if (column < l.columns) {
    const T* const from = in + OffsetOf(l.kept, o) + OffsetOf(l.column, column);
#pragma unroll 4
    for (int64_t i = segment * l.segment + down; i < end; i += kDown) {
      const T* const at = from + OffsetOf(l.reduced, i);
      if constexpr (kVector > 1) {
        const cuda::Pack<T> pack = cuda::LoadPack(at);
#pragma unroll
        for (int k = 0; k < kVector; ++k) x[k] = R::Of(x[k], cuda::Load(pack.value[k]));
      } else {
        x[0] = R::Of(x[0], cuda::Load(*at));
      }
    }
  }
  __shared__ C shared[kDown][kAcross][kVector];
#pragma unroll
  for (int k = 0; k < kVector; ++k) shared[down][across][k] = x[k];
  __syncthreads();
  if (down != 0 || column >= l.columns) return;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    C sum = shared[0][across][k];
#pragma unroll
    for (int i = 1; i < kDown; ++i) sum = R::Of(sum, shared[i][across][k]);
    if (l.segments > 1) {
      partial[(o * l.segments + segment) * l.columns + column + k] = sum;
    } else {
      out[o * l.columns + column + k] = cuda::Round<Out>(sum * static_cast<C>(l.scale));
    }
  }
}

// One result a thread.
template <class R, typename C, typename Out>
__global__ void __launch_bounds__(kThreads)
    JoinColumnsKernel(const C* partial, Out* out, int64_t outer, int64_t segments, int64_t columns,
                      double scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= outer * columns) return;
  const C* const from = partial + i / columns * segments * columns + i % columns;
  C x = from[0];
  for (int64_t s = 1; s < segments; ++s) x = R::Of(x, from[s * columns]);
  out[i] = cuda::Round<Out>(x * static_cast<C>(scale));
}

int64_t StripsOf(const ReduceState& s, int vector) {
  return CeilDiv(s.columns, int64_t{kAcross} * vector);
}

int VectorOf(DType dtype) { return static_cast<int>(16 / SizeOf(dtype)); }

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
  auto s = std::make_shared<ReduceState>();
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
  if (s->columns == 1) {
    s->segment = kRowSegment;
  } else {
    // Of the shape alone, so that a view gives the bits of its copy.
    const int64_t strips = std::max<int64_t>(1, StripsOf(*s, VectorOf(x.dtype)) * s->outer);
    const int64_t wanted = std::max<int64_t>(1, kBlocksWanted / strips);
    s->segment = std::max(kLeastRows, CeilDiv(s->count, wanted));
  }
  s->segments = std::max<int64_t>(1, CeilDiv(s->count, s->segment));
  Bound bound;
  if (s->segments > 1) {
    const int64_t each = x.dtype == DType::kF64 ? sizeof(double) : sizeof(float);
    bound.scratch_bytes = s->outer * s->segments * s->columns * each;
  }
  bound.state = std::move(s);
  return bound;
}

unsigned Blocks(int64_t items, int64_t each) { return static_cast<unsigned>(CeilDiv(items, each)); }

template <class R, typename T, typename Out>
void LaunchRows(const ReduceState& s, const Layout& l, const KernelArgs& args) {
  using C = ComputeType<T>;
  const T* in = args.in[0].as<const T>();
  Out* out = args.out[0].as<Out>();
  const cudaStream_t stream = StreamOf(args);
  if (s.count <= kShortRow) {
    ShortRowsKernel<R, T, Out><<<Blocks(s.outer, kWarps), kThreads, 0, stream>>>(in, out, l);
    return;
  }
  auto* partial = static_cast<C*>(args.scratch);
  LongRowsKernel<R, T, Out>
      <<<Blocks(s.outer * s.segments, 1), kThreads, 0, stream>>>(in, out, partial, l);
  if (s.segments == 1) return;
  JoinRowsKernel<R, C, Out>
      <<<Blocks(s.outer, 1), kThreads, 0, stream>>>(partial, out, s.segments, l.scale);
}

template <class R, typename T, typename Out>
void LaunchColumns(const ReduceState& s, const Layout& l, const KernelArgs& args) {
  using C = ComputeType<T>;
  const T* in = args.in[0].as<const T>();
  Out* out = args.out[0].as<Out>();
  const cudaStream_t stream = StreamOf(args);
  auto* partial = static_cast<C*>(args.scratch);
  constexpr int kVector = cuda::Pack<T>::kSize;
  // Every address that a pack is read from.
  bool packs = cuda::IsAligned(in) && s.column.rank <= 1 && s.column.inner_stride(0) == 1 &&
               s.columns % kVector == 0;
  for (const Walk* walk : {&s.kept, &s.reduced}) {
    for (int axis = 0; axis < walk->rank; ++axis) packs &= walk->strides[0][axis] % kVector == 0;
  }
  const int64_t strips = packs ? StripsOf(s, kVector) : StripsOf(s, 1);
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(s.segments),
                  static_cast<unsigned>(s.outer));
  if (packs) {
    ColumnsKernel<R, T, Out, kVector><<<grid, kThreads, 0, stream>>>(in, out, partial, l);
  } else {
    ColumnsKernel<R, T, Out, 1><<<grid, kThreads, 0, stream>>>(in, out, partial, l);
  }
  if (s.segments == 1) return;
  JoinColumnsKernel<R, C, Out><<<Blocks(s.outer * s.columns, kThreads), kThreads, 0, stream>>>(
      partial, out, s.outer, s.segments, s.columns, l.scale);
}

template <class R, typename T, typename Out>
int LaunchOf(const ReduceState& s, const KernelArgs& args) {
  Layout l = {ToDevice(s.kept), ToDevice(s.reduced), ToDevice(s.column), s.outer, s.columns,
              s.count,          s.segment,           s.segments,         1.0};
  if (s.kind == Reduction::kMean) l.scale = 1.0 / static_cast<double>(s.count);
  s.columns == 1 ? LaunchRows<R, T, Out>(s, l, args) : LaunchColumns<R, T, Out>(s, l, args);
  return cuda::LaunchError();
}

int LaunchReduce(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const ReduceState*>(raw);
  if (s.outer * s.columns == 0) return 0;
  // A grid's third dimension; more would need another cut.
  if (s.columns > 1 && s.outer > 65535) return static_cast<int>(cudaErrorInvalidConfiguration);
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

// ---- Functions of whole rows: a block takes a row, which it reads three times.

template <RowFunction kFunction, typename T>
__global__ void __launch_bounds__(kThreads) RowKernel(const T* in, T* out, int64_t width) {
  __shared__ float shared;
  const T* const x = in + static_cast<int64_t>(blockIdx.x) * width;
  T* const y = out + static_cast<int64_t>(blockIdx.x) * width;
  float most = MaxOf::Start<float>();
  for (int64_t i = threadIdx.x; i < width; i += kThreads) most = MaxOf::Of(most, cuda::Load(x[i]));
  most = BlockReduce<MaxOf>(most);
  if (threadIdx.x == 0) shared = most;
  __syncthreads();
  most = shared;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(cuda::Load(x[i]) - most);
  __syncthreads();
  sum = BlockReduce<SumOf>(sum);
  if (threadIdx.x == 0) shared = kFunction == RowFunction::kSoftmax ? 1 / sum : logf(sum);
  __syncthreads();
  const float factor = shared;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float at = cuda::Load(x[i]) - most;
    y[i] = cuda::Round<T>(kFunction == RowFunction::kSoftmax ? expf(at) * factor : at - factor);
  }
}

// A NaN counts as greatest; the lowest index wins.
template <typename T>
__global__ void __launch_bounds__(kThreads) ArgmaxKernel(const T* in, int32_t* out, int64_t width) {
  __shared__ float most[kThreads];
  __shared__ int32_t at[kThreads];
  const T* const x = in + static_cast<int64_t>(blockIdx.x) * width;
  const auto better = [](float a, int32_t i, float b, int32_t j) {
    const bool nan_a = a != a, nan_b = b != b;
    if (nan_a || nan_b) return nan_a && (!nan_b || i < j);
    return a > b || (a == b && i < j);
  };
  float value = MaxOf::Start<float>();
  int32_t index = INT32_MAX;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float v = cuda::Load(x[i]);
    if (index == INT32_MAX || better(v, static_cast<int32_t>(i), value, index)) {
      value = v;
      index = static_cast<int32_t>(i);
    }
  }
  most[threadIdx.x] = value;
  at[threadIdx.x] = index;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const int other = threadIdx.x + half;
      if (at[other] != INT32_MAX &&
          (at[threadIdx.x] == INT32_MAX ||
           better(most[other], at[other], most[threadIdx.x], at[threadIdx.x]))) {
        most[threadIdx.x] = most[other];
        at[threadIdx.x] = at[other];
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = at[0];
}

template <RowFunction kFunction>
Bound BindRows(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  if (!x.contiguous() || !args.out[0].contiguous()) return {.error = "operands are not contiguous"};
  auto state = std::make_shared<RowState>();
  state->function = kFunction;
  state->width = x.shape.dim(-1);
  state->rows = state->width == 0 ? 0 : x.elements() / state->width;
  return {.state = std::move(state)};
}

template <RowFunction kFunction>
int LaunchRowFunction(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const RowState*>(raw);
  if (s.rows == 0) return 0;
  return cuda::ForFloat(args.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = Blocks(s.rows, 1);
    if constexpr (std::is_same_v<T, double>) {
      return static_cast<int>(cudaErrorInvalidValue);
    } else if constexpr (kFunction == RowFunction::kArgmax) {
      ArgmaxKernel<<<blocks, kThreads, 0, StreamOf(args)>>>(args.in[0].as<const T>(),
                                                            args.out[0].as<int32_t>(), s.width);
    } else {
      RowKernel<kFunction><<<blocks, kThreads, 0, StreamOf(args)>>>(args.in[0].as<const T>(),
                                                                    args.out[0].as<T>(), s.width);
    }
    return cuda::LaunchError();
  });
}

}  // namespace

void RegisterReduceCuda(KernelTable* table) {
  const auto add = [table](const char* op, auto bind, auto launch) {
    table->Add(op, DeviceKind::kCuda, {nullptr, bind, launch, true});
  };
  add("sum", BindReduce<Reduction::kSum>, LaunchReduce);
  add("mean", BindReduce<Reduction::kMean>, LaunchReduce);
  add("max", BindReduce<Reduction::kMax>, LaunchReduce);
  add("argmax", BindRows<RowFunction::kArgmax>, LaunchRowFunction<RowFunction::kArgmax>);
  add("softmax", BindRows<RowFunction::kSoftmax>, LaunchRowFunction<RowFunction::kSoftmax>);
  add("log_softmax", BindRows<RowFunction::kLogSoftmax>,
      LaunchRowFunction<RowFunction::kLogSoftmax>);
}

}  // namespace weft
