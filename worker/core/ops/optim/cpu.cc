// CPU kernels of the optimizers: one pass over memory, in chunks of a fixed grid.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/optim/cpu.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

#include "worker/core/device/scalar_math.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/optim/narrow.h"

#ifndef WEFT_OPTIM_TYPES_
#define WEFT_OPTIM_TYPES_
namespace weft {

// Numbers of one step.
struct AdamwStep {
  float grad_scale;  // clip / count
  float beta1, beta2, eps;
  float rate;        // lr / (1 - beta1^t)
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  float shrink;      // 1 - lr * weight_decay
};
struct SgdStep {
  float count_scale;  // 1 / count
  float clamp;        // infinity: off
  float rate;         // lr * clip
};

}  // namespace weft
#endif  // WEFT_OPTIM_TYPES_

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sum of squares, in 64 running sums.
float SquaresOf(const float* x, int64_t n) {
  const hn::CappedTag<float, 16> d;
  constexpr int64_t kLanes = hn::MaxLanes(hn::CappedTag<float, 16>());
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + kLanes);
    const auto c = hn::LoadU(d, x + i + 2 * kLanes), e = hn::LoadU(d, x + i + 3 * kLanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

void AdamwRange(const AdamwStep& s, int64_t n, float shrink, const float* __restrict grad,
                float* __restrict param, float* __restrict m, float* __restrict v) {
  const float keep1 = 1 - s.beta1, keep2 = 1 - s.beta2;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * s.grad_scale;
    const float mean = s.beta1 * m[i] + keep1 * g;
    const float square = s.beta2 * v[i] + keep2 * g * g;
    m[i] = mean;
    v[i] = square;
    param[i] = param[i] * shrink - s.rate * mean / (__builtin_sqrtf(square) * s.root_scale + s.eps);
  }
}

void SgdRange(const SgdStep& s, int64_t n, const float* __restrict grad, float* __restrict param) {
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * s.count_scale;
    g = g > s.clamp ? s.clamp : g;
    g = g < -s.clamp ? -s.clamp : g;
    param[i] -= s.rate * g;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(SquaresOf);
HWY_EXPORT(AdamwRange);
HWY_EXPORT(SgdRange);

namespace {

constexpr int64_t kChunk = 4096;

int64_t Chunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

float CountScale(const ArrayRef& count) {
  const float c = *count.as<const float>();
  return c > 0 ? 1.0f / c : 0.0f;
}

// What clipping multiplies by; `norm` is an optional input at `index`.
float ClipScale(const KernelArgs& args, int index, double clip_norm) {
  if (clip_norm <= 0 || args.in_count <= index) return 1.0f;
  const double norm = static_cast<double>(*args.in[index].as<const float>());
  const double scale = clip_norm / (norm + 1e-6);
  return scale < 1 ? static_cast<float>(scale) : norm == norm ? 1.0f : static_cast<float>(norm);
}

struct Schedule {
  double base = 0, min = 0;
  int64_t warmup = 0, total = 0;
  bool cosine = false;
};

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
  const auto& s = *static_cast<const Schedule*>(state);
  const int64_t step = *args.in[0].as<const int64_t>();
  double lr = s.base;
  if (step < s.warmup) {
    lr = s.base * static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  } else if (s.cosine) {
    const int64_t at = std::min(step, s.total) - s.warmup;
    const double part = static_cast<double>(at) / static_cast<double>(s.total - s.warmup);
    lr = s.min + (s.base - s.min) * (1 + ExactSineCosine(3.14159265358979323846 * part).cosine) / 2;
  }
  *args.out[0].as<float>() = static_cast<float>(lr);
  return 0;
}

Bound BindGradNorm(const std::string&, const BindArgs& args) {
  return {nullptr, Chunks(args.in[0].elements()) * static_cast<int64_t>(sizeof(double)), ""};
}

// A balanced tree over [0, n).
double TreeSum(const double* values, int64_t n) {
  if (n <= 2) return n == 0 ? 0 : n == 1 ? values[0] : values[0] + values[1];
  const int64_t half = (n + 1) / 2;
  return TreeSum(values, half) + TreeSum(values + half, n - half);
}

int LaunchGradNorm(const void*, const KernelArgs& args) {
  const int64_t n = args.in[0].elements();
  auto* partial = static_cast<double*>(args.scratch);
  args.tiles->For(Chunks(n), [&](int64_t tile, int) {
    const int64_t first = tile * kChunk;
    partial[tile] = static_cast<double>(HWY_DYNAMIC_DISPATCH(SquaresOf)(
        args.in[0].as<const float>() + first, std::min(kChunk, n - first)));
  });
  const double norm = __builtin_sqrt(TreeSum(partial, Chunks(n)));
  *args.out[0].as<float>() = static_cast<float>(norm * static_cast<double>(CountScale(args.in[1])));
  return 0;
}

// How the bf16 copy of the parameters is made, in the ops that keep one.
struct Narrowing {
  bool stochastic = false;
  uint64_t key = 0;
};

Narrowing NarrowingOf(const Attrs& attrs) {
  return {attrs.GetBool("stochastic"), static_cast<uint64_t>(attrs.GetInt("key"))};
}

// Rounds elements [begin, end) of `param`; `begin` is a multiple of four.
void StoreLow(const Narrowing& n, const StepState& step, const float* param, uint16_t* low,
              int64_t begin, int64_t end) {
  const auto bits = [param](int64_t i) {
    uint32_t word;
    std::memcpy(&word, param + i, sizeof(word));
    return word;
  };
  if (!n.stochastic) {
    for (int64_t i = begin; i < end; ++i) low[i] = NearestBF16(bits(i));
    return;
  }
  const PhiloxBlock stream = RoundingStream(step.seed, n.key, step.step);
  for (int64_t i = begin; i < end; i += 4) {
    const PhiloxBlock words = RoundingWords(stream, i / 4);
    const int64_t count = std::min<int64_t>(4, end - i);
    for (int64_t k = 0; k < count; ++k) low[i + k] = StochasticBF16(bits(i + k), words.word[k]);
  }
}

Bound BindLowCopy(const std::string&, const BindArgs& args) {
  return {std::make_shared<Narrowing>(NarrowingOf(*args.attrs)), 0, ""};
}

int LaunchLowCopy(const void* state, const KernelArgs& args) {
  const auto& narrowing = *static_cast<const Narrowing*>(state);
  const int64_t n = args.in[0].elements();
  args.tiles->For(Chunks(n), [&](int64_t tile, int) {
    StoreLow(narrowing, args.step, args.in[0].as<const float>(), args.out[0].as<uint16_t>(),
             tile * kChunk, std::min(n, (tile + 1) * kChunk));
  });
  return 0;
}

struct SgdState {
  double clip_norm = 0;
  float clamp = 0;
  Narrowing narrowing;
};

Bound BindSgd(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<SgdState>();
  s->clip_norm = args.attrs->GetFloat("clip_norm");
  s->clamp = static_cast<float>(args.attrs->GetFloat("clamp"));
  if (s->clamp <= 0) s->clamp = __builtin_inff();
  s->narrowing = NarrowingOf(*args.attrs);
  return {std::move(s), 0, ""};
}

template <bool kLow>
int LaunchSgd(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const SgdState*>(state);
  constexpr int kGrad = kLow ? 2 : 1;
  SgdStep step;
  step.count_scale = CountScale(args.in[kGrad + 1]);
  step.clamp = s.clamp;
  step.rate = *args.in[kGrad + 2].as<const float>() * ClipScale(args, kGrad + 3, s.clip_norm);
  const int64_t n = args.in[0].elements();
  args.tiles->For(Chunks(n), [&](int64_t tile, int) {
    const int64_t first = tile * kChunk;
    HWY_DYNAMIC_DISPATCH(SgdRange)
    (step, std::min(kChunk, n - first), args.in[kGrad].as<const float>() + first,
     args.out[0].as<float>() + first);
    if constexpr (kLow) {
      StoreLow(s.narrowing, args.step, args.out[0].as<float>(), args.out[1].as<uint16_t>(), first,
               std::min(n, first + kChunk));
    }
  });
  return 0;
}

struct AdamwState {
  double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, clip_norm = 0;
  std::vector<int64_t> ranges;  // begin, end, ...
  Narrowing narrowing;
};

Bound BindAdamw(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<AdamwState>();
  s->beta1 = args.attrs->GetFloat("beta1", 0.9);
  s->beta2 = args.attrs->GetFloat("beta2", 0.999);
  s->eps = args.attrs->GetFloat("eps", 1e-8);
  s->weight_decay = args.attrs->GetFloat("weight_decay");
  s->clip_norm = args.attrs->GetFloat("clip_norm");
  s->ranges = args.attrs->GetInts("decay_ranges");
  s->narrowing = NarrowingOf(*args.attrs);
  return {std::move(s), 0, ""};
}

// base^n by squaring: multiplications only.
double Power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) result *= base;
  }
  return result;
}

// Calls body(begin, end, decays) for the pieces of [begin, end) between the borders of the ranges.
template <typename Body>
void ForPieces(const std::vector<int64_t>& borders, int64_t begin, int64_t end, const Body& body) {
  size_t next = static_cast<size_t>(std::upper_bound(borders.begin(), borders.end(), begin) -
                                    borders.begin());
  while (begin < end) {
    const int64_t stop = next < borders.size() ? std::min(end, borders[next]) : end;
    if (stop > begin) body(begin, stop, next % 2 == 1);
    begin = stop;
    ++next;
  }
}

template <bool kLow>
int LaunchAdamw(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const AdamwState*>(state);
  constexpr int kM = kLow ? 2 : 1;
  const int64_t t = *args.in[kM + 5].as<const int64_t>() + 1;
  const double lr = static_cast<double>(*args.in[kM + 4].as<const float>());
  AdamwStep step;
  step.grad_scale = CountScale(args.in[kM + 3]) * ClipScale(args, kM + 6, s.clip_norm);
  step.beta1 = static_cast<float>(s.beta1);
  step.beta2 = static_cast<float>(s.beta2);
  step.eps = static_cast<float>(s.eps);
  step.rate = static_cast<float>(lr / (1 - Power(s.beta1, t)));
  step.root_scale = static_cast<float>(1 / __builtin_sqrt(1 - Power(s.beta2, t)));
  step.shrink = static_cast<float>(1 - lr * s.weight_decay);
  const int64_t n = args.in[0].elements();
  const float* grad = args.in[kM + 2].as<const float>();
  float* param = args.out[0].as<float>();
  float* m = args.out[kM].as<float>();
  float* v = args.out[kM + 1].as<float>();
  args.tiles->For(Chunks(n), [&](int64_t tile, int) {
    ForPieces(s.ranges, tile * kChunk, std::min(n, (tile + 1) * kChunk),
              [&](int64_t begin, int64_t end, bool decays) {
                HWY_DYNAMIC_DISPATCH(AdamwRange)
                (step, end - begin, decays ? step.shrink : 1.0f, grad + begin, param + begin,
                 m + begin, v + begin);
              });
    if constexpr (kLow) {
      StoreLow(s.narrowing, args.step, param, args.out[1].as<uint16_t>(), tile * kChunk,
               std::min(n, (tile + 1) * kChunk));
    }
  });
  return 0;
}

}  // namespace

void RegisterOptimCpu(KernelTable* table) {
  table->Add("lr_schedule", DeviceKind::kCpu, {nullptr, BindLrSchedule, LaunchLrSchedule});
  table->Add("grad_norm", DeviceKind::kCpu, {nullptr, BindGradNorm, LaunchGradNorm});
  table->Add("sgd", DeviceKind::kCpu, {nullptr, BindSgd, LaunchSgd<false>});
  table->Add("adamw", DeviceKind::kCpu, {nullptr, BindAdamw, LaunchAdamw<false>});
  table->Add("low_copy", DeviceKind::kCpu, {nullptr, BindLowCopy, LaunchLowCopy, true});
  table->Add("sgd_mixed", DeviceKind::kCpu, {nullptr, BindSgd, LaunchSgd<true>, true});
  table->Add("adamw_mixed", DeviceKind::kCpu, {nullptr, BindAdamw, LaunchAdamw<true>, true});
}

}  // namespace weft
#endif  // HWY_ONCE
