// Gradients of the norms on CUDA, in one read of dy, x and residual. Each block takes a fixed set
// of rows and writes dx; what it adds to the weights' gradients it keeps in registers (shared
// memory where rows are long) until its last row, and a second launch adds the blocks in a fixed
// order. Which rows a block takes follows from the shape alone, so the bits do too.
//
// With g = dy w and h = (x - mean) rstd: dx = rstd (g - mean(g) - h mean(g h)); RMS: no mean(g).
// dweight = sum of dy h, dbias = sum of dy, over rows; and the sum of dx, where it is asked for.
#include <algorithm>
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/norm/cuda_norm.cuh"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
using norm_cuda::KeepNarrow;
using norm_cuda::ReadOnce;
using norm_cuda::Vector;

struct Backward {
  const void *dy, *x, *residual;  // residual may be null
  const float *weight, *mean, *rstd;
  void* dx;
  float* sums[3];  // dweight, dbias?, those of dx?; of block i at + i * stride
  int64_t stride;
  int64_t rows;
  int width;
  float inverse;  // 1 / width
  int group;      // threads that share a row, in RowsKernel
};

// Where a row of sums has a column: of vectors of eight, the first halves lie together and the
// second ones behind them, so that neighboring threads meet in no bank.
template <int kSize>
__device__ __forceinline__ int PlaceOf(int column, int width) {
  if constexpr (kSize <= 4) {
    return column;
  } else {
    static_assert(kSize == 8);
    return column % 8 / 4 * (width / 2) + column / 8 * 4 + column % 4;
  }
}

// A vector's sums: `row` = or += `value`. `column` is the vector's first.
template <bool kAdds, int kSize>
__device__ __forceinline__ void PutSums(float* row, int column, int width,
                                        const float (&value)[kSize]) {
  if constexpr (kSize == 1) {
    row[column] = kAdds ? row[column] + value[0] : value[0];
  } else {
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      auto* const at = reinterpret_cast<float4*>(row + PlaceOf<kSize>(column + i, width));
      float4 sum = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
      if constexpr (kAdds) {
        const float4 old = *at;
        sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
      }
      *at = sum;
    }
  }
}

// Writes a block's sums: `shared` holds kSums rows of them in each of `groups` parts, which are
// added in order.
template <int kSums, int kSize>
__device__ __forceinline__ void DeliverSums(const Backward& b, const float* shared, int groups) {
  __syncthreads();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * b.stride;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    float* const to = b.sums[k] + at;
    for (int c = threadIdx.x; c < b.width; c += blockDim.x) {
      const float* const from = shared + k * b.width + PlaceOf<kSize>(c, b.width);
      float sum = from[0];
      for (int g = 1; g < groups; ++g) sum += from[g * kSums * b.width];
      to[c] = sum;
    }
  }
}

// mean(g) and mean(g h) of a row.
struct RowSums {
  float level = 0, along = 0;
};

// Adds what `warps` warps from `first` on left in `exchange`. With two exchanges in turn there need
// be no barrier between one row's reads and the next one's writes.
__device__ __forceinline__ RowSums JoinWarps(const float2* exchange, int first, int warps) {
  RowSums sums;
  for (int w = 0; w < warps; ++w) {
    const float2 part = exchange[first + w];
    sums.level += part.x;
    sums.along += part.y;
  }
  return sums;
}

constexpr int kRows = 2;             // that a group reads at once
constexpr int kNarrowThreads = 128;  // of a block whose groups are parts of a warp
constexpr int kMostThreads = 256;    // of a block whose groups are whole warps

// A thread owns one vector of columns in every row of its group's. kGroup 0: groups of b.group
// threads, whole warps.
template <typename T, bool kMean, bool kColumns, int kSize, int kGroup>
__global__ void __maxnreg__(kGroup > 0 ? 96 : 112) RowsKernel(const Backward b) {
  constexpr int kSums = 1 + kMean + kColumns;
  extern __shared__ float4 shared_vectors[];
  __shared__ float2 exchange[2][kRows][kMostThreads / kWarp];
  const int group_threads = kGroup > 0 ? kGroup : b.group;
  const int groups = static_cast<int>(blockDim.x) / group_threads;
  const int group = threadIdx.x / group_threads;
  const int column = static_cast<int>(threadIdx.x - group * group_threads) * kSize;
  const bool owns = column < b.width;
  float weight[kSize] = {}, dweight[kSize] = {}, dbias[kSize] = {}, columns[kSize] = {};
  if (owns) norm_cuda::LoadWeights(b.weight + column, weight);

  const int64_t step = static_cast<int64_t>(gridDim.x) * groups * kRows;
  int turn = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * groups * kRows; first < b.rows;
       first += step) {
    // Groups past the last row go through the motions: barriers and shuffles want all threads.
    const int64_t row = first + group * kRows;
    Vector<T, kSize> dy[kRows], x[kRows], residual[kRows];
    float mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool active = row + r < b.rows;
      const int64_t at = (row + r) * b.width + column;
      dy[r] = x[r] = residual[r] = {};
      mean[r] = rstd[r] = 0;
      if (active && owns) {
        dy[r] = ReadOnce<kSize>(static_cast<const T*>(b.dy) + at);
        x[r] = ReadOnce<kSize>(static_cast<const T*>(b.x) + at);
        if (b.residual != nullptr) {
          residual[r] = ReadOnce<kSize>(static_cast<const T*>(b.residual) + at);
        }
      }
      if (active) {
        if constexpr (kMean) mean[r] = b.mean[row + r];
        rstd[r] = b.rstd[row + r];
      }
    }
    RowSums sums[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float d[kSize], h[kSize];
      norm_cuda::Widen(dy[r], d);
      norm_cuda::Widen(x[r], h);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float g = d[i] * weight[i];
        if constexpr (kMean) sums[r].level += g;
        sums[r].along += g * ((h[i] - mean[r]) * rstd[r]);
      }
      constexpr int kLanes = kGroup > 0 ? kGroup : kWarp;
      if constexpr (kMean) sums[r].level = norm_cuda::LaneSum<kLanes>(sums[r].level);
      sums[r].along = norm_cuda::LaneSum<kLanes>(sums[r].along);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      KeepNarrow(dy[r]);
      KeepNarrow(x[r]);
    }
    if constexpr (kGroup == 0) {
      const int warp = threadIdx.x / kWarp, warps = group_threads / kWarp;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (threadIdx.x % kWarp == r) {
          exchange[turn][r][warp] = make_float2(sums[r].level, sums[r].along);
        }
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = JoinWarps(exchange[turn][r], group * warps, warps);
      turn ^= 1;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float level = sums[r].level * b.inverse, along = sums[r].along * b.inverse;
      float d[kSize], h[kSize], dx[kSize];
      norm_cuda::Widen(dy[r], d);
      norm_cuda::Widen(x[r], h);
      norm_cuda::Widen(residual[r], dx);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        h[i] = (h[i] - mean[r]) * rstd[r];
        dweight[i] += d[i] * h[i];
        if constexpr (kMean) dbias[i] += d[i];
        dx[i] += rstd[r] * (d[i] * weight[i] - level - h[i] * along);
        if constexpr (kColumns) columns[i] += dx[i];  // 0 past the last row
      }
      if (owns && row + r < b.rows) {
        norm_cuda::Store(static_cast<T*>(b.dx) + (row + r) * b.width + column,
                         norm_cuda::Narrow<T>(dx));
      }
    }
  }
  auto* const shared = reinterpret_cast<float*>(shared_vectors);
  if (owns) {
    float* const to = shared + group * kSums * b.width;
    PutSums<false>(to, column, b.width, dweight);
    if constexpr (kMean) PutSums<false>(to + b.width, column, b.width, dbias);
    if constexpr (kColumns) PutSums<false>(to + (kSums - 1) * b.width, column, b.width, columns);
  }
  DeliverSums<kSums, kSize>(b, shared, groups);
}

// A block a row, kVectors vectors a thread; each thread keeps its columns' sums in shared memory.
template <typename T, bool kMean, bool kColumns, int kSize, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, kThreads == 256 ? 2 : 1)
    LongRowsKernel(const Backward b) {
  constexpr int kSums = 1 + kMean + kColumns;
  constexpr int kWarps = kThreads / kWarp;
  // Where registers are few, weights are read again from the cache, and residual late.
  constexpr bool kHolds = kThreads < 1024;
  extern __shared__ float4 shared_vectors[];
  __shared__ float2 exchange[2][kWarps];
  auto* const shared = reinterpret_cast<float*>(shared_vectors);
  const auto column = [](int v) { return (v * kThreads + static_cast<int>(threadIdx.x)) * kSize; };
  float weight[kHolds ? kVectors : 1][kSize] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= b.width) continue;
    if constexpr (kHolds) norm_cuda::LoadWeights(b.weight + column(v), weight[v]);
    const float zeros[kSize] = {};
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      PutSums<false>(shared + k * b.width, column(v), b.width, zeros);
    }
  }

  int turn = 0;
  for (int64_t row = blockIdx.x; row < b.rows; row += gridDim.x) {
    const int64_t base = row * b.width;
    const T* const from = static_cast<const T*>(b.residual);
    Vector<T, kSize> dy[kVectors], x[kVectors], residual[kHolds ? kVectors : 1];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      dy[v] = x[v] = {};
      if constexpr (kHolds) residual[v] = {};
      if (column(v) >= b.width) continue;
      dy[v] = ReadOnce<kSize>(static_cast<const T*>(b.dy) + base + column(v));
      x[v] = ReadOnce<kSize>(static_cast<const T*>(b.x) + base + column(v));
      if constexpr (kHolds) {
        if (from != nullptr) residual[v] = ReadOnce<kSize>(from + base + column(v));
      }
    }
    const float mean = kMean ? b.mean[row] : 0.0f, rstd = b.rstd[row];
    RowSums sums;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= b.width) continue;
      float(&w)[kSize] = weight[kHolds ? v : 0];
      if constexpr (!kHolds) norm_cuda::LoadWeights(b.weight + column(v), w);
      float d[kSize], h[kSize];
      norm_cuda::Widen(dy[v], d);
      norm_cuda::Widen(x[v], h);
      RowSums part;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float g = d[i] * w[i];
        part.level += g;
        part.along += g * ((h[i] - mean) * rstd);
      }
      sums.level += part.level;
      sums.along += part.along;
    }
    if constexpr (kMean) sums.level = cuda::WarpSum(sums.level);
    sums.along = cuda::WarpSum(sums.along);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      KeepNarrow(dy[v]);
      KeepNarrow(x[v]);
    }
    if (threadIdx.x % kWarp == 0) {
      exchange[turn][threadIdx.x / kWarp] = make_float2(sums.level, sums.along);
    }
    __syncthreads();
    sums = JoinWarps(exchange[turn], 0, kWarps);
    turn ^= 1;
    const float level = kMean ? sums.level * b.inverse : 0.0f, along = sums.along * b.inverse;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= b.width) continue;
      float(&w)[kSize] = weight[kHolds ? v : 0];
      Vector<T, kSize>& rest = residual[kHolds ? v : 0];
      if constexpr (!kHolds) {
        norm_cuda::LoadWeights(b.weight + column(v), w);
        rest = {};
        if (from != nullptr) rest = ReadOnce<kSize>(from + base + column(v));
      }
      float d[kSize], h[kSize], dx[kSize], weight_terms[kSize];
      norm_cuda::Widen(dy[v], d);
      norm_cuda::Widen(x[v], h);
      norm_cuda::Widen(rest, dx);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        h[i] = (h[i] - mean) * rstd;
        dx[i] += rstd * (d[i] * w[i] - level - h[i] * along);
        weight_terms[i] = d[i] * h[i];
      }
      PutSums<true>(shared, column(v), b.width, weight_terms);
      if constexpr (kMean) PutSums<true>(shared + b.width, column(v), b.width, d);
      if constexpr (kColumns) {
        PutSums<true>(shared + (kSums - 1) * b.width, column(v), b.width, dx);
      }
      norm_cuda::Store(static_cast<T*>(b.dx) + base + column(v), norm_cuda::Narrow<T>(dx));
    }
  }
  DeliverSums<kSums, kSize>(b, shared, 1);
}

// Sums of blocks -> gradients. 32 columns a block; a warp takes every 32nd of the blocks' sums of
// them, then a column.
__global__ void __launch_bounds__(kWarp* kWarp)
    JoinBlocksKernel(const float* partial, float* sums0, float* sums1, float* sums2, int blocks,
                     int width, int all) {
  __shared__ float shared[kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.x) * kWarp;
  float sum = 0;
  if (first + lane < all) {
#pragma unroll 8
    for (int b = warp; b < blocks; b += kWarp) {
      sum += partial[static_cast<int64_t>(b) * all + first + lane];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  sum = cuda::WarpSum(shared[lane][warp]);
  const int column = first + warp;
  if (lane == 0 && column < all) {
    float* const to = column < width       ? sums0 + column
                      : column < 2 * width ? sums1 + column - width
                                           : sums2 + column - 2 * width;
    *to = sum;
  }
}

// ---- What shapes choose.

constexpr int kProcessors = 132;  // of a large GPU

struct Launch {
  bool long_rows = false;
  int group = 0;    // threads that share a row
  int threads = 0;  // of a block
  int blocks = 0;
  int64_t shared_bytes = 0;
};

// For rows that are read in vectors of `size` elements.
Launch LaunchFor(int64_t rows, int width, int size, int sums) {
  Launch l;
  const int vectors = static_cast<int>(CeilDiv(width, size));
  l.long_rows = vectors > kMostThreads;
  if (l.long_rows) {
    l.threads = vectors <= 1024 ? 256 : vectors <= 2048 ? 512 : 1024;
    // Single elements have one form.
    if (size == 1) l.threads = 1024;
    l.group = l.threads;
  } else if (vectors <= kWarp) {
    l.threads = kNarrowThreads;
    l.group = size == 1 ? kWarp : vectors <= 8 ? 8 : vectors <= 16 ? 16 : kWarp;
  } else {
    l.group = static_cast<int>(CeilDiv(vectors, kWarp)) * kWarp;
    l.threads = kMostThreads / l.group * l.group;
  }
  const int groups = l.threads / l.group;
  const int64_t pieces = CeilDiv(rows, l.long_rows ? 1 : groups * kRows);
  // As many as run at once: registers allow so many threads of each kernel on a processor.
  const int resident = l.long_rows ? 512 : l.group <= kWarp ? 640 : 576;
  const int64_t most = kProcessors * std::max(1, resident / l.threads);
  l.blocks = static_cast<int>(std::min(pieces, most));
  l.shared_bytes = int64_t{groups} * sums * width * static_cast<int64_t>(sizeof(float));
  return l;
}

int64_t ScratchOf(const Launch& l, int width, int sums) {
  if (l.blocks <= 1) return 0;
  return int64_t{l.blocks} * sums * width * static_cast<int64_t>(sizeof(float));
}

template <typename Kernel>
void Start(Kernel* kernel, const Launch& l, const Backward& b, cudaStream_t stream) {
  if (l.shared_bytes > 32 * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(l.shared_bytes));
  }
  kernel<<<static_cast<unsigned>(l.blocks), static_cast<unsigned>(l.threads),
           static_cast<size_t>(l.shared_bytes), stream>>>(b);
}

template <typename T, bool kMean, bool kColumns, int kSize>
void StartFor(const Launch& l, const Backward& b, cudaStream_t stream) {
  if (!l.long_rows) {
    if constexpr (kSize > 1) {
      if (l.group == 8) return Start(RowsKernel<T, kMean, kColumns, kSize, 8>, l, b, stream);
      if (l.group == 16) return Start(RowsKernel<T, kMean, kColumns, kSize, 16>, l, b, stream);
    }
    if (l.group == kWarp) return Start(RowsKernel<T, kMean, kColumns, kSize, kWarp>, l, b, stream);
    return Start(RowsKernel<T, kMean, kColumns, kSize, 0>, l, b, stream);
  }
  if constexpr (kSize == 1) {
    if (b.width <= 4096) return Start(LongRowsKernel<T, kMean, kColumns, 1, 1024, 4>, l, b, stream);
    return Start(LongRowsKernel<T, kMean, kColumns, 1, 1024, 16>, l, b, stream);
  } else {
    const int vectors = b.width / kSize;
    if (vectors <= 512)
      return Start(LongRowsKernel<T, kMean, kColumns, kSize, 256, 2>, l, b, stream);
    if (vectors <= 1024)
      return Start(LongRowsKernel<T, kMean, kColumns, kSize, 256, 4>, l, b, stream);
    if (vectors <= 2048)
      return Start(LongRowsKernel<T, kMean, kColumns, kSize, 512, 4>, l, b, stream);
    if constexpr (kSize * 2048 < norm_cuda::kMostWidth) {
      return Start(LongRowsKernel<T, kMean, kColumns, kSize, 1024, 4>, l, b, stream);
    }
  }
}

struct NormGradState {
  int64_t rows = 0;
  int width = 0;
  int size = 1;              // of a vector
  Launch vectors, elements;  // where all addresses allow vectors, and where they do not
};

template <bool kMean, bool kColumns>
Bound BindBackward(const std::string&, const BindArgs& args) {
  constexpr int kSums = 1 + kMean + kColumns;
  const ArrayRef& x = args.in[1];
  const int64_t width = x.shape.dim(-1);
  if (width > norm_cuda::kMostWidth) return {.error = "rows are longer than 16384"};
  auto s = std::make_shared<NormGradState>();
  s->width = static_cast<int>(width);
  s->rows = width == 0 ? 0 : x.elements() / width;
  s->size = norm_cuda::VectorSize(x.dtype, width);
  s->vectors = LaunchFor(s->rows, s->width, s->size, kSums);
  s->elements = LaunchFor(s->rows, s->width, 1, kSums);
  const int64_t bytes =
      std::max(ScratchOf(s->vectors, s->width, kSums), ScratchOf(s->elements, s->width, kSums));
  return {std::move(s), bytes, ""};
}

template <typename T, bool kMean, bool kColumns>
void LaunchRows(const NormGradState& s, Backward b, float* scratch, cudaStream_t stream) {
  constexpr int kSums = 1 + kMean + kColumns;
  bool vectors = s.size > 1;
  for (const void* p : {b.dy, b.x, b.residual, static_cast<const void*>(b.weight),
                        static_cast<const void*>(b.dx)}) {
    vectors = vectors && cuda::IsAligned(p);
  }
  const Launch& l = vectors ? s.vectors : s.elements;
  const Backward whole = b;
  // A single block writes the gradients themselves.
  if (l.blocks > 1) {
    for (int k = 0; k < kSums; ++k) b.sums[k] = scratch + k * s.width;
    b.stride = int64_t{kSums} * s.width;
  }
  b.group = l.group;
  if (l.blocks > 0) {
    if (vectors) {
      StartFor<T, kMean, kColumns, 16 / sizeof(T)>(l, b, stream);
    } else {
      StartFor<T, kMean, kColumns, 1>(l, b, stream);
    }
  }
  if (l.blocks == 1) return;
  const int all = kSums * s.width;
  JoinBlocksKernel<<<static_cast<unsigned>(CeilDiv(all, kWarp)), kWarp * kWarp, 0, stream>>>(
      scratch, whole.sums[0], whole.sums[1], whole.sums[2], l.blocks, s.width, all);
}

template <bool kMean, bool kColumns>
int LaunchBackward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormGradState*>(state);
  if (s.width == 0) return 0;
  constexpr int kResidual = kMean ? 5 : 4;
  Backward b = {};
  b.dy = args.in[0].data;
  b.x = args.in[1].data;
  b.weight = args.in[2].as<const float>();
  b.mean = kMean ? args.in[3].as<const float>() : nullptr;
  b.rstd = args.in[kResidual - 1].as<const float>();
  b.residual = args.in_count > kResidual ? args.in[kResidual].data : nullptr;
  b.dx = args.out[0].data;
  for (int k = 0; k < 1 + kMean + kColumns; ++k) b.sums[k] = args.out[1 + k].as<float>();
  b.rows = s.rows;
  b.width = s.width;
  b.inverse = 1.0f / static_cast<float>(s.width);
  auto* const scratch = static_cast<float*>(args.scratch);
  if (args.in[1].dtype == DType::kBF16) {
    LaunchRows<bf16, kMean, kColumns>(s, b, scratch, cuda::StreamOf(args));
  } else {
    LaunchRows<float, kMean, kColumns>(s, b, scratch, cuda::StreamOf(args));
  }
  return cuda::LaunchError();
}

}  // namespace

void RegisterNormBackwardCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rms_norm_grad", kCuda,
             {nullptr, BindBackward<false, false>, LaunchBackward<false, false>, true});
  table->Add("layer_norm_grad", kCuda,
             {nullptr, BindBackward<true, false>, LaunchBackward<true, false>, true});
  table->Add("rms_norm_grad_sums", kCuda,
             {nullptr, BindBackward<false, true>, LaunchBackward<false, true>, true});
  table->Add("layer_norm_grad_sums", kCuda,
             {nullptr, BindBackward<true, true>, LaunchBackward<true, true>, true});
}

}  // namespace weft
