// Normalizations on CUDA: x (and r) are read once into registers, which hold the row while its mean
// and then its squared distances are summed. A row belongs to 8 to 32 lanes of a warp, or to a
// block where it is long; which it is follows from its width, so a row's bits do not depend on the
// others.
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/norm/cuda_norm.cuh"

namespace weft {
namespace {

using cuda::bf16;
using cuda::kWarp;
using norm_cuda::ReadOnce;
using norm_cuda::Vector;

struct Forward {
  const void *x, *r;  // r may be null: nothing is added
  const float *weight, *bias;
  void *y, *s;
  float *mean, *rstd;  // mean is null: RMS norm
  int64_t rows;
  int width;
  float eps;
};

constexpr int ThreadsOf(int group) { return group < 128 ? 128 : group; }

template <int kGroup>
__device__ __forceinline__ float GroupSum(float x) {
  if constexpr (kGroup <= kWarp) {
    return norm_cuda::LaneSum<kGroup>(x);
  } else {
    return cuda::BlockSum<kGroup>(x);
  }
}

// kGroup threads hold a row, kVectors vectors each: vector v of a lane is number v * kGroup + lane.
template <typename T, int kSize, int kGroup, int kVectors>
__global__ void __launch_bounds__(ThreadsOf(kGroup), kGroup == 512 ? 2 : 1)
    ForwardKernel(const Forward f) {
  constexpr int kRows = ThreadsOf(kGroup) / kGroup;
  // One vector's weights are asked for before the sums, to arrive meanwhile.
  constexpr bool kEarly = kVectors == 1;
  const int lane = threadIdx.x % kGroup;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kGroup;
  const int64_t base = row * f.width;
  // Lanes without a row go through the motions: shuffles want all of a warp.
  const int width = row < f.rows ? f.width : 0;
  const auto column = [&](int v) { return (v * kGroup + lane) * kSize; };

  Vector<T, kSize> value[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    value[v] = {};
    if (column(v) < width)
      value[v] = ReadOnce<kSize>(static_cast<const T*>(f.x) + base + column(v));
  }
  float weight[kSize] = {}, bias[kSize] = {};
  const auto load_weights = [&](int v) {
    norm_cuda::LoadWeights(f.weight + column(v), weight);
    if (f.bias != nullptr) norm_cuda::LoadWeights(f.bias + column(v), bias);
  };
  if (kEarly && column(0) < width) load_weights(0);
  if (f.r != nullptr) {
    Vector<T, kSize> r[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) < width) r[v] = ReadOnce<kSize>(static_cast<const T*>(f.r) + base + column(v));
    }
    // What is normalized is the sum as it is stored.
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= width) continue;
      float a[kSize], b[kSize];
      norm_cuda::Widen(value[v], a);
      norm_cuda::Widen(r[v], b);
#pragma unroll
      for (int i = 0; i < kSize; ++i) a[i] += b[i];
      value[v] = norm_cuda::Narrow<T>(a);
      norm_cuda::Store(static_cast<T*>(f.s) + base + column(v), value[v]);
    }
  }

  const float count = static_cast<float>(f.width);
  float mean = 0;
  if (f.mean != nullptr) {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float a[kSize], part = 0;
      norm_cuda::Widen(value[v], a);
#pragma unroll
      for (int i = 0; i < kSize; ++i) part += a[i];
      sum += part;
    }
    mean = GroupSum<kGroup>(sum) / count;
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float a[kSize], part = 0;
    norm_cuda::Widen(value[v], a);
#pragma unroll
    for (int i = 0; i < kSize; ++i) part += (a[i] - mean) * (a[i] - mean);
    if (column(v) < width) squares += part;
  }
  const float rstd = 1.0f / sqrtf(GroupSum<kGroup>(squares) / count + f.eps);
  if (lane == 0 && width > 0) {
    if (f.mean != nullptr) f.mean[row] = mean;
    f.rstd[row] = rstd;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column(v) >= width) continue;
    if (!kEarly) load_weights(v);
    float y[kSize];
    norm_cuda::Widen(value[v], y);
#pragma unroll
    for (int i = 0; i < kSize; ++i) y[i] = (y[i] - mean) * rstd * weight[i] + bias[i];
    norm_cuda::Store(static_cast<T*>(f.y) + base + column(v), norm_cuda::Narrow<T>(y));
  }
}

template <typename T, int kSize, int kGroup, int kVectors>
void LaunchGroups(const Forward& f, cudaStream_t stream) {
  constexpr int kThreads = ThreadsOf(kGroup);
  const auto blocks = static_cast<unsigned>(cuda::CeilDiv(f.rows, kThreads / kGroup));
  ForwardKernel<T, kSize, kGroup, kVectors><<<blocks, kThreads, 0, stream>>>(f);
}

// Rows of vectors of 16 bytes.
template <typename T>
void LaunchVectors(const Forward& f, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(T);
  const int vectors = f.width / kSize;
  if (vectors <= 8) {
    LaunchGroups<T, kSize, 8, 1>(f, stream);
  } else if (vectors <= 16) {
    LaunchGroups<T, kSize, 16, 1>(f, stream);
  } else if (vectors <= 32) {
    LaunchGroups<T, kSize, 32, 1>(f, stream);
  } else if (vectors <= 64) {
    LaunchGroups<T, kSize, 32, 2>(f, stream);
  } else if (vectors <= 128) {
    LaunchGroups<T, kSize, 32, 4>(f, stream);
  } else if (vectors <= 256) {
    LaunchGroups<T, kSize, 32, 8>(f, stream);
  } else if (vectors <= 512) {
    LaunchGroups<T, kSize, 128, 4>(f, stream);
  } else if (vectors <= 1024) {
    LaunchGroups<T, kSize, 256, 4>(f, stream);
  } else if (vectors <= 2048) {
    LaunchGroups<T, kSize, 512, 4>(f, stream);
  } else if constexpr (kSize * 2048 < norm_cuda::kMostWidth) {
    LaunchGroups<T, kSize, 1024, 4>(f, stream);
  }
}

// Rows of single elements.
template <typename T>
void LaunchElements(const Forward& f, cudaStream_t stream) {
  if (f.width <= 32) {
    LaunchGroups<T, 1, 32, 1>(f, stream);
  } else if (f.width <= 256) {
    LaunchGroups<T, 1, 32, 8>(f, stream);
  } else if (f.width <= 1024) {
    LaunchGroups<T, 1, 256, 4>(f, stream);
  } else {
    LaunchGroups<T, 1, 1024, 16>(f, stream);
  }
}

template <typename T>
void LaunchRows(const Forward& f, cudaStream_t stream) {
  bool vectors = f.width % (16 / sizeof(T)) == 0;
  for (const void* p :
       {f.x, f.r, static_cast<const void*>(f.weight), static_cast<const void*>(f.bias),
        static_cast<const void*>(f.y), static_cast<const void*>(f.s)}) {
    vectors = vectors && cuda::IsAligned(p);
  }
  vectors ? LaunchVectors<T>(f, stream) : LaunchElements<T>(f, stream);
}

struct NormState {
  int64_t rows = 0;
  int width = 0;
  float eps = 0;
};

Bound BindForward(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  const int64_t width = x.shape.dim(-1);
  if (width > norm_cuda::kMostWidth) return {.error = "rows are longer than 16384"};
  auto state = std::make_shared<NormState>();
  state->width = static_cast<int>(width);
  state->rows = width == 0 ? 0 : x.elements() / width;
  state->eps = static_cast<float>(args.attrs->GetFloat("eps", 1e-5));
  return {.state = std::move(state)};
}

// Operands in the order of the literals: x (r) weight (bias), y (s) (mean) rstd.
template <bool kMean, bool kAdd>
int LaunchForward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormState*>(state);
  if (s.rows == 0) return 0;
  constexpr int kWeight = kAdd ? 2 : 1;
  Forward f = {};
  f.x = args.in[0].data;
  f.r = kAdd ? args.in[1].data : nullptr;
  f.weight = args.in[kWeight].as<const float>();
  f.bias = args.in_count > kWeight + 1 ? args.in[kWeight + 1].as<const float>() : nullptr;
  f.y = args.out[0].data;
  f.s = kAdd ? args.out[1].data : nullptr;
  f.mean = kMean ? args.out[kAdd ? 2 : 1].as<float>() : nullptr;
  f.rstd = args.out[args.out_count - 1].as<float>();
  f.rows = s.rows;
  f.width = s.width;
  f.eps = s.eps;
  if (args.in[0].dtype == DType::kBF16) {
    LaunchRows<bf16>(f, cuda::StreamOf(args));
  } else {
    LaunchRows<float>(f, cuda::StreamOf(args));
  }
  return cuda::LaunchError();
}

}  // namespace

void RegisterNormCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rms_norm", kCuda, {nullptr, BindForward, LaunchForward<false, false>, true});
  table->Add("layer_norm", kCuda, {nullptr, BindForward, LaunchForward<true, false>, true});
  table->Add("add_rms_norm", kCuda, {nullptr, BindForward, LaunchForward<false, true>, true});
  table->Add("add_layer_norm", kCuda, {nullptr, BindForward, LaunchForward<true, true>, true});
  RegisterNormBackwardCuda(table);
}

}  // namespace weft
