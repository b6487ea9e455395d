// Optimizers on CUDA: one pass over the flat buffers, whatever they hold. Rates, counts and norms
// are read where they are; nothing is decided on the host. While the step's gate is closed nothing
// is written.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/optim/narrow.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::kWarp;
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

constexpr int kFoursOfChunk = 8;  // of each thread, all read at once
constexpr int kChunk = kFoursOfChunk * 4 * kThreads;
constexpr int kJoinThreads = 1024;

__device__ __forceinline__ float CountScale(const float* count) {
  return *count > 0 ? 1.0f / *count : 0.0f;
}

// Four elements at once.
__device__ __forceinline__ float4 ReadFour(const float* p) {
  return __ldcs(reinterpret_cast<const float4*>(p));
}
// One by one, zeros from `left` on.
__device__ __forceinline__ float4 ReadUpTo(const float* p, int64_t left) {
  float4 four = make_float4(0, 0, 0, 0);
  if (left > 0) four.x = p[0];
  if (left > 1) four.y = p[1];
  if (left > 2) four.z = p[2];
  if (left > 3) four.w = p[3];
  return four;
}

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const float* grad, int64_t n, bool packs, float* partial) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunk;
  const bool whole = packs && first + kChunk <= n;
  float4 g[kFoursOfChunk];
#pragma unroll
  for (int i = 0; i < kFoursOfChunk; ++i) {
    const int64_t at = first + (i * kThreads + static_cast<int>(threadIdx.x)) * 4;
    g[i] = whole ? *reinterpret_cast<const float4*>(grad + at) : ReadUpTo(grad + at, n - at);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFoursOfChunk; ++i) {
    sum += (g[i].x * g[i].x + g[i].y * g[i].y) + (g[i].z * g[i].z + g[i].w * g[i].w);
  }
  const float all = cuda::BlockSum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kJoinThreads)
    NormKernel(const float* partial, int chunks, const float* count, float* out) {
  const double scale = static_cast<double>(CountScale(count));
  double sum = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < chunks; i += kJoinThreads) sum += static_cast<double>(partial[i]);
  sum = cuda::BlockSum<kJoinThreads>(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sqrt(sum) * scale);
}

Bound BindGradNorm(const std::string&, const BindArgs& args) {
  const int64_t chunks = CeilDiv(args.in[0].elements(), kChunk);
  return {nullptr, chunks * static_cast<int64_t>(sizeof(float)), ""};
}

int LaunchGradNorm(const void*, const KernelArgs& args) {
  const int64_t n = args.in[0].elements(), chunks = CeilDiv(n, kChunk);
  auto* partial = static_cast<float*>(args.scratch);
  const auto* grad = args.in[0].as<const float>();
  if (chunks > 0) {
    SquaresKernel<<<static_cast<unsigned>(chunks), kThreads, 0, StreamOf(args)>>>(
        grad, n, cuda::IsAligned(grad), partial);
  }
  NormKernel<<<1, kJoinThreads, 0, StreamOf(args)>>>(
      partial, static_cast<int>(chunks), args.in[1].as<const float>(), args.out[0].as<float>());
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

// How the bf16 copy of a parameter is made, if there is one.
enum class Low { kNone, kNearest, kStochastic };

// A rule says what an element becomes, each rounding spelled out: the same bits in whatever code it
// is inlined. Its numbers of the step are made once a block, each by a warp of its own, so that
// their reads and divisions run side by side.

struct Sgd {
  static constexpr int kStates = 0;  // arrays beside the parameters
  static constexpr bool kDecays = false;
  const float *count, *lr, *norm;
  double clip_norm;
  float clamp;  // infinity: off

  struct Step {
    float count_scale, rate;
  };
  __device__ void Prepare(int warp, Step* step) const {
    if (warp == 0) step->count_scale = CountScale(count);
    if (warp == 1) step->rate = *lr * ClipScale(norm, clip_norm);
  }
  __device__ float Next(const Step& step, bool, float p, float g, float*, float*) const {
    float x = __fmul_rn(g, step.count_scale);
    x = x > clamp ? clamp : x;
    x = x < -clamp ? -clamp : x;
    return __fmaf_rn(-step.rate, x, p);
  }
};

// base^n by squaring.
__device__ double Power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

struct Adamw {
  static constexpr int kStates = 2;
  static constexpr bool kDecays = true;
  const float *count, *lr, *norm;
  const int64_t* step;
  double exact_beta1, exact_beta2, weight_decay, clip_norm;
  float beta1, beta2, keep1, keep2, eps;  // keep: 1 - beta

  struct Step {
    float grad_scale;  // clip / count
    float rate;        // lr / (1 - beta1^t)
    float root_scale;  // 1 / sqrt(1 - beta2^t)
    float shrink;      // 1 - lr * weight_decay
  };
  __device__ void Prepare(int warp, Step* s) const {
    if (warp == 0) {
      s->rate = static_cast<float>(static_cast<double>(*lr) / (1 - Power(exact_beta1, *step + 1)));
    } else if (warp == 1) {
      s->root_scale = static_cast<float>(1 / sqrt(1 - Power(exact_beta2, *step + 1)));
    } else if (warp == 2) {
      s->grad_scale = CountScale(count) * ClipScale(norm, clip_norm);
    } else if (warp == 3) {
      s->shrink = static_cast<float>(1 - static_cast<double>(*lr) * weight_decay);
    }
  }
  __device__ float Next(const Step& s, bool decays, float p, float g, float* m, float* v) const {
    const float x = __fmul_rn(g, s.grad_scale);
    *m = __fmaf_rn(beta1, *m, __fmul_rn(keep1, x));
    *v = __fmaf_rn(beta2, *v, __fmul_rn(__fmul_rn(keep2, x), x));
    const float root = __fmaf_rn(__fsqrt_rn(*v), s.root_scale, eps);
    const float change = __fdiv_rn(__fmul_rn(s.rate, *m), root);
    return __fmaf_rn(p, decays ? s.shrink : 1.0f, -change);
  }
};

// Borders of the ranges that decay: an element decays when an odd number of them is at or below it.
// As many as kernels are compiled for: parameters of a launch are copied with it.
template <int kMost>
struct Borders {
  int count;
  int64_t at[kMost];
};
template <int kMost>
__device__ __forceinline__ int FirstAbove(const Borders<kMost>& borders, int64_t element) {
  int first = 0;
  for (int end = borders.count; first < end;) {
    const int middle = (first + end) / 2;
    if (borders.at[middle] <= element) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}
constexpr int kFewBorders = 128;
constexpr int kMostBorders = 2048;  // 16 of the 32 KB that a launch's parameters may have

struct Arrays {
  float *param, *state0, *state1;
  const float* grad;
  bf16* low;
  int64_t n;
  bool packs;  // all addresses are multiples of 16
  uint64_t seed, key;
  cuda::StepNumber step;
  const int32_t* gate;
};

// kLast: nobody reads them again before the next step.
template <bool kLast>
__device__ __forceinline__ void StoreFour(float* p, const float (&value)[4]) {
  const float4 four = make_float4(value[0], value[1], value[2], value[3]);
  if constexpr (kLast) {
    __stcs(reinterpret_cast<float4*>(p), four);
  } else {
    *reinterpret_cast<float4*>(p) = four;
  }
}

template <Low kLow>
__device__ __forceinline__ uint32_t NarrowBits(float value, uint32_t word) {
  const uint32_t bits = __float_as_uint(value);
  return kLow == Low::kStochastic ? StochasticBF16(bits, word) : NearestBF16(bits);
}

// Elements [i, i + 4) in bf16.
template <Low kLow>
__device__ __forceinline__ void StoreLowFour(bf16* low, int64_t i, const PhiloxBlock& stream,
                                             const float (&value)[4]) {
  PhiloxBlock words = {};
  if constexpr (kLow == Low::kStochastic) words = RoundingWords(stream, i / 4);
  uint32_t bits[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) bits[k] = NarrowBits<kLow>(value[k], words.word[k]);
  *reinterpret_cast<uint2*>(low + i) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

template <Low kLow>
__device__ __forceinline__ void StoreLowOne(bf16* low, int64_t i, const PhiloxBlock& stream,
                                            float value) {
  uint32_t word = 0;
  if constexpr (kLow == Low::kStochastic) {
    const PhiloxBlock words = RoundingWords(stream, i / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) word = i % 4 == k ? words.word[k] : word;
  }
  reinterpret_cast<uint16_t*>(low)[i] = static_cast<uint16_t>(NarrowBits<kLow>(value, word));
}

// Element i alone.
template <class Rule, Low kLow, int kMost>
__device__ __forceinline__ void UpdateOne(const Rule& rule, const typename Rule::Step& step,
                                          const Arrays& a, const Borders<kMost>& borders,
                                          const PhiloxBlock& stream, int64_t i) {
  float m = 0, v = 0;
  if constexpr (Rule::kStates == 2) {
    m = a.state0[i];
    v = a.state1[i];
  }
  const bool decays = FirstAbove(borders, i) % 2 == 1;
  const float p = rule.Next(step, decays, a.param[i], a.grad[i], &m, &v);
  a.param[i] = p;
  if constexpr (Rule::kStates == 2) {
    a.state0[i] = m;
    a.state1[i] = v;
  }
  if constexpr (kLow != Low::kNone) StoreLowOne<kLow>(a.low, i, stream, p);
}

constexpr int kFours = 2;  // of each thread and array, all read at once
constexpr int kTile = kFours * 4 * kThreads;
constexpr int kResident = 4;  // blocks of a processor

// Blocks take whole tiles in turn, then single elements of what is left. The first tile is asked
// for before the step's numbers are made.
template <class Rule, Low kLow, int kMost>
__global__ void __launch_bounds__(kThreads, kResident)
    UpdateKernel(__grid_constant__ const Rule rule, __grid_constant__ const Arrays a,
                 __grid_constant__ const Borders<kMost> borders) {
  __shared__ typename Rule::Step shared_step;
  __shared__ PhiloxBlock shared_stream;
  __shared__ bool shared_closed;
  float4 param[kFours], grad[kFours], m[kFours] = {}, v[kFours] = {};
  const auto place = [](int64_t tile, int f) {
    return tile * kTile + (f * kThreads + static_cast<int>(threadIdx.x)) * 4;
  };
  const auto read = [&](int64_t tile) {
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const int64_t i = place(tile, f);
      param[f] = ReadFour(a.param + i);
      grad[f] = ReadFour(a.grad + i);
      if constexpr (Rule::kStates == 2) {
        m[f] = ReadFour(a.state0 + i);
        v[f] = ReadFour(a.state1 + i);
      }
    }
  };
  const int64_t tiles = a.packs ? a.n / kTile : 0;
  int64_t tile = blockIdx.x;
  if (tile < tiles) read(tile);
  if (threadIdx.x % kWarp == 0) {
    const int warp = threadIdx.x / kWarp;
    rule.Prepare(warp, &shared_step);
    if (warp == 4) shared_closed = cuda::Closed(a.gate);
    if (kLow == Low::kStochastic && warp == 5) {
      shared_stream = RoundingStream(a.seed, a.key, a.step.get());
    }
  }
  __syncthreads();
  if (shared_closed) return;
  const typename Rule::Step step = shared_step;
  PhiloxBlock stream = {};
  if constexpr (kLow == Low::kStochastic) stream = shared_stream;

  int next = FirstAbove(borders, tile * kTile);
  while (tile < tiles) {
    const int64_t begin = tile * kTile;
    while (next < borders.count && borders.at[next] <= begin) ++next;
    const bool mixed = next < borders.count && borders.at[next] < begin + kTile;
    int inside = next;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const int64_t i = place(tile, f);
      float p[4] = {param[f].x, param[f].y, param[f].z, param[f].w};
      const float g[4] = {grad[f].x, grad[f].y, grad[f].z, grad[f].w};
      float m4[4] = {m[f].x, m[f].y, m[f].z, m[f].w};
      float v4[4] = {v[f].x, v[f].y, v[f].z, v[f].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        while (mixed && inside < borders.count && borders.at[inside] <= i + k) ++inside;
        p[k] = rule.Next(step, inside % 2 == 1, p[k], g[k], m4 + k, v4 + k);
      }
      StoreFour<kLow != Low::kNone>(a.param + i, p);
      if constexpr (Rule::kStates == 2) {
        StoreFour<true>(a.state0 + i, m4);
        StoreFour<true>(a.state1 + i, v4);
      }
      if constexpr (kLow != Low::kNone) StoreLowFour<kLow>(a.low, i, stream, p);
    }
    tile += gridDim.x;
    if (tile < tiles) read(tile);
  }
  for (int64_t i = tiles * kTile + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < a.n; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    UpdateOne<Rule, kLow>(rule, step, a, borders, stream, i);
  }
}

struct UpdateState {
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, clip_norm = 0;
  float clamp = 0;
  bool stochastic = false;
  uint64_t key = 0;
  std::vector<int64_t> borders;
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
  s->borders = args.attrs->GetInts("decay_ranges");
  if (s->borders.size() > kMostBorders) {
    return {.error = "more than 1024 ranges of parameters that decay"};
  }
  return {std::move(s), 0, ""};
}

template <class Rule, Low kLow, int kMost>
void LaunchWith(const UpdateState& s, const Rule& rule, const Arrays& arrays, cudaStream_t stream) {
  Borders<kMost> borders;
  borders.count = static_cast<int>(s.borders.size());
  std::copy(s.borders.begin(), s.borders.end(), borders.at);
  // As many blocks as run at once on a large GPU.
  const int64_t blocks = std::min<int64_t>(CeilDiv(arrays.n, kTile), 132 * kResident);
  UpdateKernel<Rule, kLow, kMost>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(rule, arrays, borders);
}

template <class Rule, Low kLow>
void LaunchLow(const UpdateState& s, const Rule& rule, const Arrays& arrays, cudaStream_t stream) {
  if (!Rule::kDecays || s.borders.size() <= kFewBorders) {
    LaunchWith<Rule, kLow, kFewBorders>(s, rule, arrays, stream);
  } else if constexpr (Rule::kDecays) {
    LaunchWith<Rule, kLow, kMostBorders>(s, rule, arrays, stream);
  }
}

// Inputs: param (low) and the rule's states, all of them written, then grad.
template <class Rule, bool kLow>
int LaunchRule(const UpdateState& s, const Rule& rule, const KernelArgs& args) {
  constexpr int kState = kLow ? 2 : 1;
  constexpr int kGrad = kState + Rule::kStates;
  Arrays a = {};
  a.n = args.in[0].elements();
  if (a.n == 0) return 0;
  a.param = args.out[0].as<float>();
  if constexpr (Rule::kStates == 2) {
    a.state0 = args.out[kState].as<float>();
    a.state1 = args.out[kState + 1].as<float>();
  }
  a.grad = args.in[kGrad].as<const float>();
  a.low = kLow ? args.out[1].as<bf16>() : nullptr;
  a.packs = true;
  for (const void* p : {static_cast<const void*>(a.param), static_cast<const void*>(a.state0),
                        static_cast<const void*>(a.state1), static_cast<const void*>(a.grad),
                        static_cast<const void*>(a.low)}) {
    a.packs = a.packs && cuda::IsAligned(p);
  }
  a.seed = args.step.seed;
  a.key = s.key;
  a.step = cuda::StepOf(args);
  a.gate = args.gate;
  const cudaStream_t stream = StreamOf(args);
  if constexpr (kLow) {
    s.stochastic ? LaunchLow<Rule, Low::kStochastic>(s, rule, a, stream)
                 : LaunchLow<Rule, Low::kNearest>(s, rule, a, stream);
  } else {
    LaunchLow<Rule, Low::kNone>(s, rule, a, stream);
  }
  return cuda::LaunchError();
}

// Inputs: param (low), grad, count, lr, norm?
template <bool kLow>
int LaunchSgd(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const UpdateState*>(state);
  constexpr int kCount = kLow ? 3 : 2;
  Sgd sgd = {};
  sgd.count = args.in[kCount].as<const float>();
  sgd.lr = args.in[kCount + 1].as<const float>();
  const bool clips = s.clip_norm > 0 && args.in_count > kCount + 2;
  sgd.norm = clips ? args.in[kCount + 2].as<const float>() : nullptr;
  sgd.clip_norm = s.clip_norm;
  sgd.clamp = s.clamp;
  return LaunchRule<Sgd, kLow>(s, sgd, args);
}

// Inputs: param (low), m, v, grad, count, lr, step, norm?
template <bool kLow>
int LaunchAdamw(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const UpdateState*>(state);
  constexpr int kCount = kLow ? 5 : 4;
  Adamw a = {};
  a.count = args.in[kCount].as<const float>();
  a.lr = args.in[kCount + 1].as<const float>();
  a.step = args.in[kCount + 2].as<const int64_t>();
  const bool clips = s.clip_norm > 0 && args.in_count > kCount + 3;
  a.norm = clips ? args.in[kCount + 3].as<const float>() : nullptr;
  a.exact_beta1 = s.beta1;
  a.exact_beta2 = s.beta2;
  a.weight_decay = s.weight_decay;
  a.clip_norm = s.clip_norm;
  a.beta1 = static_cast<float>(s.beta1);
  a.beta2 = static_cast<float>(s.beta2);
  a.keep1 = 1 - a.beta1;
  a.keep2 = 1 - a.beta2;
  a.eps = static_cast<float>(s.eps);
  return LaunchRule<Adamw, kLow>(s, a, args);
}

// Runs where parameters came from elsewhere, so once in a run: an element a thread will do.
template <Low kLow>
__global__ void LowCopyKernel(const float* param, bf16* low, int64_t n, uint64_t seed, uint64_t key,
                              cuda::StepNumber step) {
  PhiloxBlock stream = {};
  if constexpr (kLow == Low::kStochastic) stream = RoundingStream(seed, key, step.get());
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    StoreLowOne<kLow>(low, i, stream, param[i]);
  }
}

int LaunchLowCopy(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const UpdateState*>(state);
  const int64_t n = args.in[0].elements();
  if (n == 0) return 0;
  const auto kernel = s.stochastic ? LowCopyKernel<Low::kStochastic> : LowCopyKernel<Low::kNearest>;
  const int64_t blocks = std::min<int64_t>(CeilDiv(n, int64_t{kThreads}), 132 * 8);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, StreamOf(args)>>>(
      args.in[0].as<const float>(), args.out[0].as<bf16>(), n, args.step.seed, s.key,
      cuda::StepOf(args));
  return cuda::LaunchError();
}

}  // namespace

void RegisterOptimCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("lr_schedule", kCuda, {nullptr, BindLrSchedule, LaunchLrSchedule});
  table->Add("grad_norm", kCuda, {nullptr, BindGradNorm, LaunchGradNorm});
  table->Add("sgd", kCuda, {nullptr, BindUpdate, LaunchSgd<false>});
  table->Add("adamw", kCuda, {nullptr, BindUpdate, LaunchAdamw<false>});
  table->Add("low_copy", kCuda, {nullptr, BindUpdate, LaunchLowCopy, true});
  table->Add("sgd_mixed", kCuda, {nullptr, BindUpdate, LaunchSgd<true>, true});
  table->Add("adamw_mixed", kCuda, {nullptr, BindUpdate, LaunchAdamw<true>, true});
}

}  // namespace weft
