// Optimizers on CUDA: one pass over the flat buffers, whatever they hold. Rates, counts and norms
// are read where they are; nothing is decided on the host. While the step's gate is closed nothing
// is written.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "fabric/base/philox.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::Pack;
using cuda::StreamOf;

constexpr int kThreads = 256;

// ---- Learning rate.

struct Schedule {
  double base = 0, min = 0;
  int64_t warmup = 0, total = 0;
  bool cosine = false;
};

__global__ void LrScheduleKernel(const Schedule s, const int64_t* step_at, float* out) {
  const int64_t step = *step_at;
  double lr = s.base;
  if (step < s.warmup) {
    lr = s.base * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  } else if (s.cosine) {
    const int64_t at = min(step, s.total) - s.warmup;
    const double part = static_cast<double>(at) / static_cast<double>(s.total - s.warmup);
    lr = s.min + (s.base - s.min) * (1 + cospi(part)) / 2;
  }
  *out = static_cast<float>(lr);
}

Bound BindLrSchedule(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<Schedule>();
  s->base = args.attrs->GetFloat("base");
  s->min = args.attrs->GetFloat("min");
  s->warmup = args.attrs->GetInt("warmup");
  s->total = args.attrs->GetInt("total");
  s->cosine = args.attrs->GetString("decay") == "cosine";
  return {std::move(s), 0, ""};
}

int LaunchLrSchedule(const void* state, const KernelArgs& args) {
  LrScheduleKernel<<<1, 1, 0, StreamOf(args)>>>(*static_cast<const Schedule*>(state),
                                                args.in[0].as<const int64_t>(),
                                                args.out[0].as<float>());
  return cuda::LaunchError();
}

// ---- Norm: a fixed grid of chunks, then a fixed tree over them.

constexpr int64_t kChunk = 8192;
constexpr int kJoinThreads = 1024;

__device__ __forceinline__ float CountScale(const float* count) {
  return *count > 0 ? 1.0f / *count : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const float* grad, int64_t n, double* partial) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk;
  float sum = 0;
#pragma unroll
  for (int64_t i = threadIdx.x * 4; i < kChunk; i += kThreads * 4) {
    const int64_t at = first + i;
    if (at + 4 <= n) {
      const float4 g = *reinterpret_cast<const float4*>(grad + at);
      sum += (g.x * g.x + g.y * g.y) + (g.z * g.z + g.w * g.w);
    } else {
      for (int64_t k = at; k < n; ++k) sum += grad[k] * grad[k];
    }
  }
  const float all = cuda::BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<double>(all);
}

__global__ void __launch_bounds__(kJoinThreads)
    NormKernel(const double* partial, int64_t chunks, const float* count, float* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kJoinThreads) sum += partial[i];
  sum = cuda::BlockSum<kJoinThreads>(sum);
  if (threadIdx.x == 0) {
    *out = static_cast<float>(sqrt(sum) * static_cast<double>(CountScale(count)));
  }
}

Bound BindGradNorm(const std::string&, const BindArgs& args) {
  const int64_t chunks = CeilDiv(args.in[0].elements(), kChunk);
  return {nullptr, chunks * static_cast<int64_t>(sizeof(double)), ""};
}

int LaunchGradNorm(const void*, const KernelArgs& args) {
  const int64_t n = args.in[0].elements(), chunks = CeilDiv(n, kChunk);
  auto* partial = static_cast<double*>(args.scratch);
  if (chunks > 0) {
    SquaresKernel<<<static_cast<unsigned>(chunks), kThreads, 0, StreamOf(args)>>>(
        args.in[0].as<const float>(), n, partial);
  }
  NormKernel<<<1, kJoinThreads, 0, StreamOf(args)>>>(partial, chunks, args.in[1].as<const float>(),
                                                     args.out[0].as<float>());
  return cuda::LaunchError();
}

// ---- Updates.

// What clipping multiplies by.
__device__ float ClipScale(const float* norm, double clip_norm) {
  if (norm == nullptr) return 1.0f;
  const double at = static_cast<double>(*norm);
  const double scale = clip_norm / (at + 1e-6);
  return scale < 1 ? static_cast<float>(scale) : at == at ? 1.0f : static_cast<float>(at);
}

// How the bf16 copy of a parameter is made.
struct Narrowing {
  bf16* low = nullptr;  // null: there is none
  bool stochastic = false;
  uint64_t seed = 0, key = 0;
};

// Elements [i, i + 4) of one Philox block: what is cut off decides against 16 random bits.
__device__ __forceinline__ void StoreLow(const Narrowing& n, const PhiloxBlock& stream, int64_t i,
                                         const float (&value)[4], int count) {
  bf16 low[4];
  if (n.stochastic) {
    const PhiloxBlock words =
        Philox(stream.word[0] | uint64_t{stream.word[1]} << 32,
               stream.word[2] | uint64_t{stream.word[3]} << 32, static_cast<uint64_t>(i / 4));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t bits = __float_as_uint(value[k]);
      // Infinity and NaN have nothing to round.
      const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
      const uint32_t up = finite ? bits + (words.word[k] >> 16) : bits;
      low[k] = finite ? __ushort_as_bfloat16(static_cast<unsigned short>(up >> 16))
                      : __float2bfloat16_rn(value[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) low[k] = __float2bfloat16_rn(value[k]);
  }
  if (count == 4) {
    *reinterpret_cast<uint2*>(n.low + i) = *reinterpret_cast<const uint2*>(low);
  } else {
    for (int k = 0; k < count; ++k) n.low[i + k] = low[k];
  }
}

__device__ __forceinline__ PhiloxBlock StreamOfStep(const Narrowing& n, cuda::StepNumber step) {
  return n.stochastic ? Philox(n.seed, n.key, static_cast<uint64_t>(step.get())) : PhiloxBlock{};
}

struct Sgd {
  float* param;
  const float *grad, *count, *lr, *norm;
  double clip_norm;
  float clamp;
  int64_t n;
  Narrowing narrowing;
};

__device__ __forceinline__ void LoadFour(const float* from, int count, float (&value)[4]) {
  if (count == 4) {
    *reinterpret_cast<float4*>(value) = *reinterpret_cast<const float4*>(from);
  } else {
    for (int k = 0; k < 4; ++k) value[k] = k < count ? from[k] : 0.0f;
  }
}
__device__ __forceinline__ void StoreFour(float* to, int count, const float (&value)[4]) {
  if (count == 4) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(value);
  } else {
    for (int k = 0; k < count; ++k) to[k] = value[k];
  }
}

__global__ void __launch_bounds__(kThreads)
    SgdKernel(const Sgd s, const cuda::StepNumber step, const int32_t* gate) {
  if (cuda::Closed(gate)) return;
  const float count_scale = CountScale(s.count);
  const float rate = *s.lr * ClipScale(s.norm, s.clip_norm);
  const PhiloxBlock stream = StreamOfStep(s.narrowing, step);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * 4;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4; i < s.n;
       i += stride) {
    const int count = static_cast<int>(min(int64_t{4}, s.n - i));
    alignas(16) float p[4], g[4];
    LoadFour(s.param + i, count, p);
    LoadFour(s.grad + i, count, g);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float x = g[k] * count_scale;
      x = x > s.clamp ? s.clamp : x;
      x = x < -s.clamp ? -s.clamp : x;
      p[k] -= rate * x;
    }
    StoreFour(s.param + i, count, p);
    if (s.narrowing.low != nullptr) StoreLow(s.narrowing, stream, i, p, count);
  }
}

constexpr int kMostRanges = 1024;  // 16 of the 32 KB that a kernel's parameters may have

// Borders of the ranges that decay: an element decays when an odd number of them is at or below it.
struct Borders {
  int count;
  int64_t at[2 * kMostRanges];
};

struct Adamw {
  float *param, *m, *v;
  const float *grad, *count, *lr, *norm;
  const int64_t* step;
  double beta1, beta2, weight_decay, clip_norm;
  float eps;
  int64_t n;
  Narrowing narrowing;
};

// base^n by squaring.
__device__ double Power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// Numbers of one step, made once a block.
struct AdamwStep {
  float grad_scale, rate, root_scale, shrink;
};

__global__ void __launch_bounds__(kThreads)
    AdamwKernel(__grid_constant__ const Adamw a, __grid_constant__ const Borders borders,
                const cuda::StepNumber step, const int32_t* gate) {
  if (cuda::Closed(gate)) return;
  __shared__ AdamwStep shared;
  if (threadIdx.x == 0) {
    const int64_t t = *a.step + 1;
    const double lr = static_cast<double>(*a.lr);
    shared.grad_scale = CountScale(a.count) * ClipScale(a.norm, a.clip_norm);
    shared.rate = static_cast<float>(lr / (1 - Power(a.beta1, t)));
    shared.root_scale = static_cast<float>(1 / sqrt(1 - Power(a.beta2, t)));
    shared.shrink = static_cast<float>(1 - lr * a.weight_decay);
  }
  __syncthreads();
  const AdamwStep s = shared;
  const float beta1 = static_cast<float>(a.beta1), beta2 = static_cast<float>(a.beta2);
  const float keep1 = 1 - beta1, keep2 = 1 - beta2;
  const PhiloxBlock stream = StreamOfStep(a.narrowing, step);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * 4;
  int next = 0;  // the first border above i; i only grows
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4; i < a.n;
       i += stride) {
    const int count = static_cast<int>(min(int64_t{4}, a.n - i));
    alignas(16) float p[4], g[4], m[4], v[4];
    LoadFour(a.param + i, count, p);
    LoadFour(a.grad + i, count, g);
    LoadFour(a.m + i, count, m);
    LoadFour(a.v + i, count, v);
    while (next < borders.count && borders.at[next] <= i) ++next;
    int inside = next;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      while (inside < borders.count && borders.at[inside] <= i + k) ++inside;
      const float shrink = inside % 2 == 1 ? s.shrink : 1.0f;
      const float x = g[k] * s.grad_scale;
      m[k] = beta1 * m[k] + keep1 * x;
      v[k] = beta2 * v[k] + keep2 * x * x;
      p[k] = p[k] * shrink - s.rate * m[k] / (sqrtf(v[k]) * s.root_scale + a.eps);
    }
    StoreFour(a.param + i, count, p);
    StoreFour(a.m + i, count, m);
    StoreFour(a.v + i, count, v);
    if (a.narrowing.low != nullptr) StoreLow(a.narrowing, stream, i, p, count);
  }
}

struct UpdateState {
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, clip_norm = 0;
  float clamp = 0;
  bool stochastic = false;
  uint64_t key = 0;
  Borders borders = {};
};

Bound BindUpdate(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<UpdateState>();
  s->beta1 = args.attrs->GetFloat("beta1", 0.9);
  s->beta2 = args.attrs->GetFloat("beta2", 0.999);
  s->eps = args.attrs->GetFloat("eps", 1e-8);
  s->weight_decay = args.attrs->GetFloat("weight_decay");
  s->clip_norm = args.attrs->GetFloat("clip_norm");
  s->clamp = static_cast<float>(args.attrs->GetFloat("clamp"));
  if (s->clamp <= 0) s->clamp = __builtin_inff();
  s->stochastic = args.attrs->GetBool("stochastic");
  s->key = static_cast<uint64_t>(args.attrs->GetInt("key"));
  const std::vector<int64_t> ranges = args.attrs->GetInts("decay_ranges");
  if (ranges.size() > 2 * kMostRanges) {
    return {.error = "more than 1024 ranges of parameters that decay"};
  }
  s->borders.count = static_cast<int>(ranges.size());
  std::copy(ranges.begin(), ranges.end(), s->borders.at);
  return {std::move(s), 0, ""};
}

// Enough to fill a large GPU several times; the rest in a loop.
unsigned UpdateBlocks(int64_t n) {
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(n, int64_t{kThreads} * 4), 1, 1056));
}

// Inputs: param (low), grad, count, lr, norm?
template <bool kLow>
int LaunchSgd(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const UpdateState*>(state);
  constexpr int kGrad = kLow ? 2 : 1;
  Sgd sgd = {};
  sgd.param = args.out[0].as<float>();
  sgd.grad = args.in[kGrad].as<const float>();
  sgd.count = args.in[kGrad + 1].as<const float>();
  sgd.lr = args.in[kGrad + 2].as<const float>();
  const bool clips = s.clip_norm > 0 && args.in_count > kGrad + 3;
  sgd.norm = clips ? args.in[kGrad + 3].as<const float>() : nullptr;
  sgd.clip_norm = s.clip_norm;
  sgd.clamp = s.clamp;
  sgd.n = args.in[0].elements();
  if (kLow) sgd.narrowing = {args.out[1].as<bf16>(), s.stochastic, args.step.seed, s.key};
  if (sgd.n == 0) return 0;
  SgdKernel<<<UpdateBlocks(sgd.n), kThreads, 0, StreamOf(args)>>>(sgd, cuda::StepOf(args),
                                                                  args.gate);
  return cuda::LaunchError();
}

// Inputs: param (low), m, v, grad, count, lr, step, norm?
template <bool kLow>
int LaunchAdamw(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const UpdateState*>(state);
  constexpr int kM = kLow ? 2 : 1;
  Adamw a = {};
  a.param = args.out[0].as<float>();
  a.m = args.out[kM].as<float>();
  a.v = args.out[kM + 1].as<float>();
  a.grad = args.in[kM + 2].as<const float>();
  a.count = args.in[kM + 3].as<const float>();
  a.lr = args.in[kM + 4].as<const float>();
  a.step = args.in[kM + 5].as<const int64_t>();
  const bool clips = s.clip_norm > 0 && args.in_count > kM + 6;
  a.norm = clips ? args.in[kM + 6].as<const float>() : nullptr;
  a.beta1 = s.beta1;
  a.beta2 = s.beta2;
  a.weight_decay = s.weight_decay;
  a.clip_norm = s.clip_norm;
  a.eps = static_cast<float>(s.eps);
  a.n = args.in[0].elements();
  if (kLow) a.narrowing = {args.out[1].as<bf16>(), s.stochastic, args.step.seed, s.key};
  if (a.n == 0) return 0;
  AdamwKernel<<<UpdateBlocks(a.n), kThreads, 0, StreamOf(args)>>>(a, s.borders, cuda::StepOf(args),
                                                                  args.gate);
  return cuda::LaunchError();
}

}  // namespace

void RegisterOptimCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("lr_schedule", kCuda, {nullptr, BindLrSchedule, LaunchLrSchedule});
  table->Add("grad_norm", kCuda, {nullptr, BindGradNorm, LaunchGradNorm});
  table->Add("sgd", kCuda, {nullptr, BindUpdate, LaunchSgd<false>});
  table->Add("adamw", kCuda, {nullptr, BindUpdate, LaunchAdamw<false>});
  table->Add("sgd_mixed", kCuda, {nullptr, BindUpdate, LaunchSgd<true>, true});
  table->Add("adamw_mixed", kCuda, {nullptr, BindUpdate, LaunchAdamw<true>, true});
}

}  // namespace weft
