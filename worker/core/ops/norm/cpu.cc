// CPU kernels of the norms: one read forward, one read backward. Weight gradients are summed within
// blocks of kRows rows, then over the blocks in order.
#include <algorithm>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/norm/cpu.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

#ifndef WEFT_NORM_TYPES_
#define WEFT_NORM_TYPES_
namespace weft {

struct NormForward {
  const float* x;
  const float* r;  // null: nothing is added
  const float* weight;
  const float* bias;  // may be null
  float* y;
  float* s;     // x + r; null when nothing is added
  float* mean;  // null: RMS norm
  float* rstd;
  int64_t width;
  float eps;
};

struct NormBackward {
  const float* dy;
  const float* x;
  const float* weight;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* residual;  // may be null
  float* dx;
  int64_t width;
};

}  // namespace weft
#endif  // WEFT_NORM_TYPES_

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using V = hn::Vec<Tag>;
constexpr int64_t kLanes = hn::MaxLanes(Tag());

// Sum over i of f(i, mask) where `f` yields zero in lanes that are off. Two sums hide the latency.
template <class F>
HWY_INLINE float SumOver(int64_t n, const F& f) {
  const Tag d;
  V even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = f(i, even);
    odd = f(i + kLanes, odd);
  }
  float total;
  if (i + kLanes <= n) {
    even = f(i, even);
    i += kLanes;
  }
  total = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  return total;
}

// One row forward. The last elements that fill no vector are summed one by one.
HWY_INLINE void ForwardRow(const NormForward& a, int64_t row) {
  const Tag d;
  const int64_t n = a.width, whole = n / kLanes * kLanes;
  const float* x = a.x + row * n;
  if (a.s != nullptr) {
    const float* r = a.r + row * n;
    float* s = a.s + row * n;
    for (int64_t i = 0; i < n; ++i) s[i] = x[i] + r[i];
    x = s;
  }
  float mean = 0;
  const float count = static_cast<float>(n);
  if (a.mean != nullptr) {
    mean = SumOver(n, [&](int64_t i, V sum) { return hn::Add(sum, hn::LoadU(d, x + i)); });
    for (int64_t i = whole; i < n; ++i) mean += x[i];
    mean /= count;
    a.mean[row] = mean;
  }
  const V m = hn::Set(d, mean);
  float squares = SumOver(n, [&](int64_t i, V sum) {
    const V c = hn::Sub(hn::LoadU(d, x + i), m);
    return hn::MulAdd(c, c, sum);
  });
  for (int64_t i = whole; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float rstd = 1.0f / __builtin_sqrtf(squares / count + a.eps);
  a.rstd[row] = rstd;
  float* y = a.y + row * n;
  const float* w = a.weight;
  if (a.bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * w[i] + a.bias[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * w[i];
  }
}

void ForwardRows(const NormForward& a, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) ForwardRow(a, row);
}

// One row backward; dweight and dbias (null for RMS norm) are added to.
HWY_INLINE void BackwardRow(const NormBackward& a, int64_t row, float* dweight, float* dbias) {
  const Tag d;
  const int64_t n = a.width, whole = n / kLanes * kLanes;
  const float* x = a.x + row * n;
  const float* dy = a.dy + row * n;
  const float* w = a.weight;
  const float mean = a.mean == nullptr ? 0 : a.mean[row], rstd = a.rstd[row];
  const V m = hn::Set(d, mean), r = hn::Set(d, rstd);
  // Of g = dy w: its mean, and that of g times the normalized x.
  float along = SumOver(n, [&](int64_t i, V sum) {
    const V g = hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, w + i));
    return hn::MulAdd(g, hn::Mul(hn::Sub(hn::LoadU(d, x + i), m), r), sum);
  });
  for (int64_t i = whole; i < n; ++i) along += dy[i] * w[i] * ((x[i] - mean) * rstd);
  along /= static_cast<float>(n);
  float level = 0;
  if (a.mean != nullptr) {
    level = SumOver(n, [&](int64_t i, V sum) {
      return hn::MulAdd(hn::LoadU(d, dy + i), hn::LoadU(d, w + i), sum);
    });
    for (int64_t i = whole; i < n; ++i) level += dy[i] * w[i];
    level /= static_cast<float>(n);
  }
  float* __restrict dx = a.dx + row * n;
  float* __restrict dw = dweight;
  for (int64_t i = 0; i < n; ++i) {
    const float centred = (x[i] - mean) * rstd;
    dx[i] = (dy[i] * w[i] - level - centred * along) * rstd;
    dw[i] += dy[i] * centred;
  }
  if (a.residual != nullptr) {
    const float* residual = a.residual + row * n;
    for (int64_t i = 0; i < n; ++i) dx[i] += residual[i];
  }
  if (dbias != nullptr) {
    for (int64_t i = 0; i < n; ++i) dbias[i] += dy[i];
  }
}

void BackwardRows(const NormBackward& a, int64_t first, int64_t end, float* dweight, float* dbias) {
  std::fill_n(dweight, a.width, 0.0f);
  if (dbias != nullptr) std::fill_n(dbias, a.width, 0.0f);
  for (int64_t row = first; row < end; ++row) BackwardRow(a, row, dweight, dbias);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(ForwardRows);
HWY_EXPORT(BackwardRows);

namespace {

constexpr int64_t kRows = 64;

struct NormState {
  int64_t rows = 0, width = 0;
  float eps = 0;
};

int64_t Blocks(int64_t rows) { return (rows + kRows - 1) / kRows; }

Bound BindForward(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<NormState>();
  state->width = args.in[0].shape.dim(-1);
  state->rows = args.in[0].elements() / std::max<int64_t>(state->width, 1);
  state->eps = static_cast<float>(args.attrs->GetFloat("eps", 1e-5));
  return {std::move(state), 0, ""};
}

// Operands in the order of the literals: x (r) weight (bias), y (s) (mean) rstd.
template <bool kMean, bool kAdd>
int LaunchForward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormState*>(state);
  constexpr int kWeight = kAdd ? 2 : 1;
  NormForward f;
  f.x = args.in[0].as<const float>();
  f.r = kAdd ? args.in[1].as<const float>() : nullptr;
  f.weight = args.in[kWeight].as<const float>();
  f.bias = args.in_count > kWeight + 1 ? args.in[kWeight + 1].as<const float>() : nullptr;
  f.y = args.out[0].as<float>();
  f.s = kAdd ? args.out[1].as<float>() : nullptr;
  f.mean = kMean ? args.out[kAdd ? 2 : 1].as<float>() : nullptr;
  f.rstd = args.out[args.out_count - 1].as<float>();
  f.width = s.width;
  f.eps = s.eps;
  args.tiles->For(Blocks(s.rows), [&](int64_t tile, int) {
    HWY_DYNAMIC_DISPATCH(ForwardRows)(f, tile * kRows, std::min(s.rows, (tile + 1) * kRows));
  });
  return 0;
}

template <bool kMean, bool kColumns>
Bound BindBackward(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<NormState>();
  state->width = args.in[1].shape.dim(-1);
  state->rows = args.in[1].elements() / std::max<int64_t>(state->width, 1);
  const int64_t floats = Blocks(state->rows) * state->width * (1 + kMean + kColumns);
  return {std::move(state), floats * static_cast<int64_t>(sizeof(float)), ""};
}

void SumBlocks(const float* partial, int64_t blocks, int64_t stride, int64_t width, float* sum) {
  std::fill_n(sum, width, 0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* __restrict row = partial + b * stride;
    for (int64_t i = 0; i < width; ++i) sum[i] += row[i];
  }
}

template <bool kMean, bool kColumns>
int LaunchBackward(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const NormState*>(state);
  constexpr int kResidual = kMean ? 5 : 4;
  constexpr int kSums = 1 + kMean + kColumns;
  NormBackward b;
  b.dy = args.in[0].as<const float>();
  b.x = args.in[1].as<const float>();
  b.weight = args.in[2].as<const float>();
  b.mean = kMean ? args.in[3].as<const float>() : nullptr;
  b.rstd = args.in[kResidual - 1].as<const float>();
  b.residual = args.in_count > kResidual ? args.in[kResidual].as<const float>() : nullptr;
  b.dx = args.out[0].as<float>();
  b.width = s.width;
  float* partial = static_cast<float*>(args.scratch);
  const int64_t stride = kSums * s.width;
  args.tiles->For(Blocks(s.rows), [&](int64_t tile, int) {
    float* dweight = partial + tile * stride;
    const int64_t first = tile * kRows, end = std::min(s.rows, first + kRows);
    HWY_DYNAMIC_DISPATCH(BackwardRows)
    (b, first, end, dweight, kMean ? dweight + s.width : nullptr);
    if (kColumns) {
      SumBlocks(b.dx + first * s.width, end - first, s.width, s.width,
                dweight + (kSums - 1) * s.width);
    }
  });
  for (int i = 0; i < kSums; ++i) {
    SumBlocks(partial + i * s.width, Blocks(s.rows), stride, s.width, args.out[1 + i].as<float>());
  }
  return 0;
}

}  // namespace

void RegisterNormCpu(KernelTable* table) {
  constexpr DeviceKind kCpu = DeviceKind::kCpu;
  table->Add("rms_norm", kCpu, {nullptr, BindForward, LaunchForward<false, false>});
  table->Add("layer_norm", kCpu, {nullptr, BindForward, LaunchForward<true, false>});
  table->Add("add_rms_norm", kCpu, {nullptr, BindForward, LaunchForward<false, true>});
  table->Add("add_layer_norm", kCpu, {nullptr, BindForward, LaunchForward<true, true>});
  table->Add("rms_norm_grad", kCpu,
             {nullptr, BindBackward<false, false>, LaunchBackward<false, false>});
  table->Add("layer_norm_grad", kCpu,
             {nullptr, BindBackward<true, false>, LaunchBackward<true, false>});
  table->Add("rms_norm_grad_sums", kCpu,
             {nullptr, BindBackward<false, true>, LaunchBackward<false, true>});
  table->Add("layer_norm_grad_sums", kCpu,
             {nullptr, BindBackward<true, true>, LaunchBackward<true, true>});
}

}  // namespace weft
#endif  // HWY_ONCE
