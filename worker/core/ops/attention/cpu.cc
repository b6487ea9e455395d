// CPU kernels of attention: a tile is one head of one sequence. Queries go in blocks of kBlock
// rows; scores of a block against all keys that it sees stand in scratch, so the softmax is the
// plain one. Keys beyond a causal row's position are skipped in units of eight rows and 32 keys.
// Products are the family matmul's.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/attention/cpu.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

#include "worker/core/device/scalar_math.h"
#include "worker/core/device/vector_math-inl.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/gemm.h"

#ifndef WEFT_ATTENTION_TYPES_
#define WEFT_ATTENTION_TYPES_
namespace weft {

inline constexpr int64_t kAttentionBlock = 64;  // query rows

struct AttentionState {
  int64_t batch = 0, time = 0, heads = 0, width = 0;
  bool causal = false;
  bool inverse = false;         // the rotary op only
  float scale = 1;              // 1 / sqrt(width)
  std::vector<float> rotation;  // [time][cosines of width / 2, sines of width / 2]; empty: none
  int64_t thread_floats = 0;

  int64_t stride() const { return 3 * heads * width; }  // of a position in qkv
  int64_t padded_time() const { return RoundUp(time, kGemmPanel); }
  int64_t padded_width() const { return RoundUp(width, kGemmPanel); }
  const float* angles(int64_t t) const {
    return rotation.empty() ? nullptr : rotation.data() + t * width;
  }
};

// One head's places in memory.
struct HeadForward {
  const float* qkv;  // q of position 0
  float* y;          // [time], heads * width apart
  float* lse;        // [time]
  float* scratch;
};
struct HeadBackward {
  const float* qkv;
  const float* y;
  const float* dy;
  const float* lse;
  float* dqkv;
  float* scratch;
};

}  // namespace weft
#endif  // WEFT_ATTENTION_TYPES_

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using V = hn::Vec<Tag>;
constexpr int64_t kLanes = hn::MaxLanes(Tag());

// out = x rotated by the angles (null: not) and scaled. `out` may be `x`.
HWY_INLINE void RotateRow(const float* x, const float* angles, float sign, float scale,
                          int64_t width, float* out) {
  if (angles == nullptr) {
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale;
    return;
  }
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float c = angles[i], s = angles[half + i] * sign;
    const float low = x[i], high = x[half + i];
    out[i] = (low * c - high * s) * scale;
    out[half + i] = (high * c + low * s) * scale;
  }
}

// How many keys row `t` sees.
HWY_INLINE int64_t Seen(const AttentionState& s, int64_t t) { return s.causal ? t + 1 : s.time; }

// Exponentials of one row of scores, zeros behind `seen` up to `padded`; their sum and the greatest
// score.
struct RowSum {
  float sum, top;
};
HWY_INLINE RowSum SoftmaxRow(float* row, int64_t seen, int64_t padded) {
  const Tag d;
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  V top = lowest;
  int64_t j = 0;
  for (; j + kLanes <= seen; j += kLanes) top = hn::Max(top, hn::LoadU(d, row + j));
  if (j < seen) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(seen - j));
    top = hn::Max(top, hn::IfThenElse(mask, hn::LoadU(d, row + j), lowest));
  }
  top = hn::MaxOfLanes(d, top);
  V sum = hn::Zero(d);
  for (j = 0; j + kLanes <= seen; j += kLanes) {
    const V p = FastExp(d, hn::Sub(hn::LoadU(d, row + j), top));
    hn::StoreU(p, d, row + j);
    sum = hn::Add(sum, p);
  }
  if (j < seen) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(seen - j));
    const V p = hn::IfThenElseZero(mask, FastExp(d, hn::Sub(hn::LoadU(d, row + j), top)));
    hn::StoreU(p, d, row + j);
    sum = hn::Add(sum, p);
    j += kLanes;
  }
  for (; j < padded; j += kLanes) hn::StoreU(hn::Zero(d), d, row + j);
  return {hn::GetLane(hn::SumOfLanes(d, sum)), hn::GetLane(top)};
}

// c rows [0, rows) = a rows * panels over the keys seen from position t0, a stripe of eight rows a
// time.
void Scores(const AttentionState& s, const float* a, int64_t t0, int64_t rows, const float* panels,
            float* c) {
  Product p;
  p.a_stride = s.width;
  p.b = panels;
  p.b_stride = s.width * kGemmPanel;
  p.k = s.width;
  p.c_stride = s.padded_time();
  for (int64_t i = 0; i < rows; i += kGemmStrip) {
    p.m = std::min(kGemmStrip, rows - i);
    p.a = a + i * s.width;
    p.n = RoundUp(Seen(s, t0 + i + p.m - 1), kGemmPanel);
    p.c = c + i * p.c_stride;
    Multiply(p);
  }
}

// c = p * panels, where row i of p is zero behind what it sees.
void Weighted(const AttentionState& s, const float* probabilities, int64_t t0, int64_t rows,
              const float* panels, float* c, int64_t c_stride) {
  Product p;
  p.a_stride = s.padded_time();
  p.b = panels;
  p.b_stride = s.time * kGemmPanel;
  p.n = s.width;
  p.c_stride = c_stride;
  for (int64_t i = 0; i < rows; i += kGemmStrip) {
    p.m = std::min(kGemmStrip, rows - i);
    p.a = probabilities + i * p.a_stride;
    p.k = Seen(s, t0 + i + p.m - 1);
    p.c = c + i * c_stride;
    Multiply(p);
  }
}

// Packs rows [time, width] a position apart as panels of columns.
void PackColumns(const AttentionState& s, const float* data, int64_t stride, int64_t rows,
                 float* panels) {
  for (int64_t j = 0; j < s.width; j += kGemmPanel) {
    PackPanel(data + j, stride, 1, rows, std::min(kGemmPanel, s.width - j), panels + j * rows);
  }
}

// Packs the transpose: keys become columns.
void PackKeys(const AttentionState& s, const float* data, int64_t stride, float* panels) {
  for (int64_t t = 0; t < s.time; t += kGemmPanel) {
    PackPanel(data + t * stride, 1, stride, s.width, std::min(kGemmPanel, s.time - t),
              panels + t * s.width);
  }
}

void ForwardHead(const AttentionState& s, const HeadForward& h) {
  const int64_t hidden = s.heads * s.width;
  float* turned = h.scratch;                         // [time, width]: rotated keys
  float* keys = turned + s.time * s.width;           // panels of k'
  float* values = keys + s.padded_time() * s.width;  // panels of v
  float* q = values + s.padded_width() * s.time;     // [kBlock, width]
  float* scores = q + kAttentionBlock * s.width;     // [kBlock, padded_time]
  const float* k = h.qkv + hidden;
  if (s.rotation.empty()) {
    PackKeys(s, k, s.stride(), keys);
  } else {
    for (int64_t t = 0; t < s.time; ++t) {
      RotateRow(k + t * s.stride(), s.angles(t), 1, 1, s.width, turned + t * s.width);
    }
    PackKeys(s, turned, s.width, keys);
  }
  PackColumns(s, h.qkv + 2 * hidden, s.stride(), s.time, values);
  for (int64_t t0 = 0; t0 < s.time; t0 += kAttentionBlock) {
    const int64_t rows = std::min(kAttentionBlock, s.time - t0);
    for (int64_t i = 0; i < rows; ++i) {
      RotateRow(h.qkv + (t0 + i) * s.stride(), s.angles(t0 + i), 1, s.scale, s.width,
                q + i * s.width);
    }
    Scores(s, q, t0, rows, keys, scores);
    float inverse[kAttentionBlock];
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t last = std::min(RoundUp(i + 1, kGemmStrip), rows) - 1;  // of its stripe
      const RowSum sum = SoftmaxRow(scores + i * s.padded_time(), Seen(s, t0 + i),
                                    RoundUp(Seen(s, t0 + last), kLanes));
      inverse[i] = 1.0f / sum.sum;
      h.lse[t0 + i] = static_cast<float>(sum.top + ExactLog(sum.sum));
    }
    Weighted(s, scores, t0, rows, values, h.y + t0 * hidden, hidden);
    for (int64_t i = 0; i < rows; ++i) {
      float* y = h.y + (t0 + i) * hidden;
      for (int64_t c = 0; c < s.width; ++c) y[c] *= inverse[i];
    }
  }
}

HWY_INLINE float Dot(const float* a, const float* b, int64_t n) {
  const Tag d;
  V sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

// Scores become probabilities, and gradients of probabilities become those of scores.
HWY_INLINE void GradRow(float* p, float* dp, float lse, float delta, int64_t seen, int64_t padded) {
  const Tag d;
  const V l = hn::Set(d, lse), del = hn::Set(d, delta);
  for (int64_t j = 0; j < padded; j += kLanes) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(seen - j, 0, kLanes)));
    const V e = hn::IfThenElseZero(mask, FastExp(d, hn::Sub(hn::LoadU(d, p + j), l)));
    const V g = hn::IfThenElseZero(mask, hn::Mul(e, hn::Sub(hn::LoadU(d, dp + j), del)));
    hn::StoreU(e, d, p + j);
    hn::StoreU(g, d, dp + j);
  }
}

// c[key] (+)= sum over the block's queries of weights[query, key] * panels[query].
void SumOverQueries(const AttentionState& s, const float* weights, int64_t t0, int64_t rows,
                    const float* panels, float* strip, float* c) {
  Product p;
  p.b_stride = rows * kGemmPanel;
  p.n = s.width;
  p.c_stride = s.stride();
  const int64_t end = s.causal ? std::min(s.time, t0 + rows) : s.time;
  for (int64_t key = 0; key < end; key += kGemmStrip) {
    // Queries before the strip's first key see none of it.
    const int64_t first = s.causal ? std::clamp<int64_t>(key - t0, 0, rows) : 0;
    p.m = std::min(kGemmStrip, end - key);
    p.k = rows - first;
    // A causal strip is seen for the first time by its own block of queries.
    p.accumulate = s.causal ? t0 > key / kAttentionBlock * kAttentionBlock : t0 > 0;
    PackStrip(weights + first * s.padded_time() + key, s.padded_time(), p.k, p.m, strip);
    p.a = strip;
    p.b = panels + first * kGemmPanel;
    p.c = c + key * s.stride();
    Multiply(p);
  }
}

void BackwardHead(const AttentionState& s, const HeadBackward& h) {
  const int64_t hidden = s.heads * s.width, padded = s.padded_time();
  float* turned = h.scratch;                        // [time, width]
  float* keys = turned + s.time * s.width;          // panels of k'
  float* values = keys + padded * s.width;          // panels of v'
  float* key_rows = values + padded * s.width;      // panels of k
  float* q = key_rows + s.padded_width() * s.time;  // [kBlock, width]
  float* dy = q + kAttentionBlock * s.width;        // [kBlock, width]
  float* q_panels = dy + kAttentionBlock * s.width;
  float* dy_panels = q_panels + kAttentionBlock * s.padded_width();
  float* p = dy_panels + kAttentionBlock * s.padded_width();  // [kBlock, padded]
  float* ds = p + kAttentionBlock * padded;
  float* strip = ds + kAttentionBlock * padded;  // [kBlock, kGemmStrip]
  for (int64_t t = 0; t < s.time; ++t) {
    RotateRow(h.qkv + hidden + t * s.stride(), s.angles(t), 1, 1, s.width, turned + t * s.width);
  }
  PackKeys(s, turned, s.width, keys);
  PackColumns(s, turned, s.width, s.time, key_rows);
  PackKeys(s, h.qkv + 2 * hidden, s.stride(), values);
  for (int64_t t0 = 0; t0 < s.time; t0 += kAttentionBlock) {
    const int64_t rows = std::min(kAttentionBlock, s.time - t0);
    for (int64_t i = 0; i < rows; ++i) {
      RotateRow(h.qkv + (t0 + i) * s.stride(), s.angles(t0 + i), 1, s.scale, s.width,
                q + i * s.width);
      std::copy_n(h.dy + (t0 + i) * hidden, s.width, dy + i * s.width);
    }
    Scores(s, q, t0, rows, keys, p);
    Scores(s, dy, t0, rows, values, ds);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t t = t0 + i;
      const int64_t last = std::min(RoundUp(i + 1, kGemmStrip), rows) - 1;
      const float delta = Dot(h.dy + t * hidden, h.y + t * hidden, s.width);
      GradRow(p + i * padded, ds + i * padded, h.lse[t], delta, Seen(s, t),
              RoundUp(Seen(s, t0 + last), kGemmPanel));
    }
    Weighted(s, ds, t0, rows, key_rows, h.dqkv + t0 * s.stride(), s.stride());
    for (int64_t t = t0; t < t0 + rows; ++t) {
      float* dq = h.dqkv + t * s.stride();
      RotateRow(dq, s.angles(t), -1, s.scale, s.width, dq);
    }
    PackColumns(s, q, s.width, rows, q_panels);
    PackColumns(s, dy, s.width, rows, dy_panels);
    SumOverQueries(s, ds, t0, rows, q_panels, strip, h.dqkv + hidden);
    SumOverQueries(s, p, t0, rows, dy_panels, strip, h.dqkv + 2 * hidden);
  }
  for (int64_t t = 0; !s.rotation.empty() && t < s.time; ++t) {
    float* dk = h.dqkv + hidden + t * s.stride();
    RotateRow(dk, s.angles(t), -1, 1, s.width, dk);
  }
}

// q and k of one position; v is copied.
void RotatePosition(const AttentionState& s, int64_t t, const float* x, float* y) {
  const int64_t hidden = s.heads * s.width;
  for (int64_t head = 0; head < 2 * s.heads; ++head) {
    RotateRow(x + head * s.width, s.angles(t), s.inverse ? -1 : 1, 1, s.width, y + head * s.width);
  }
  std::copy_n(x + 2 * hidden, hidden, y + 2 * hidden);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(ForwardHead);
HWY_EXPORT(BackwardHead);
HWY_EXPORT(RotatePosition);

namespace {

// Cosines and sines of t * base^(-2 i / width), in double, then rounded.
std::vector<float> RotationTable(int64_t time, int64_t width, double base) {
  std::vector<float> table(time * width);
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double step =
        ExactExp(-2.0 * static_cast<double>(i) / static_cast<double>(width) * ExactLog(base));
    for (int64_t t = 0; t < time; ++t) {
      const SineCosine angle = ExactSineCosine(static_cast<double>(t) * step);
      table[t * width + i] = static_cast<float>(angle.cosine);
      table[t * width + half + i] = static_cast<float>(angle.sine);
    }
  }
  return table;
}

std::shared_ptr<AttentionState> MakeState(const Shape& qkv, const Attrs& attrs, double base) {
  auto s = std::make_shared<AttentionState>();
  s->batch = qkv.dim(0);
  s->time = qkv.dim(1);
  s->heads = attrs.GetInt("heads");
  s->width = qkv.dim(2) / (3 * s->heads);
  s->causal = attrs.GetBool("causal");
  // A square root by the processor is correctly rounded everywhere.
  s->scale = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(s->width)));
  if (base != 0) s->rotation = RotationTable(s->time, s->width, base);
  return s;
}

Bound Finish(std::shared_ptr<AttentionState> s, int64_t thread_floats, int threads) {
  s->thread_floats = RoundUp(thread_floats, 16);
  Bound bound;
  bound.scratch_bytes = threads * s->thread_floats * static_cast<int64_t>(sizeof(float));
  bound.state = std::move(s);
  return bound;
}

Bound BindAttention(const std::string&, const BindArgs& args) {
  auto s = MakeState(args.in[0].shape, *args.attrs, args.attrs->GetFloat("rotary_base"));
  const int64_t floats = s->time * s->width + s->padded_time() * s->width +
                         s->padded_width() * s->time +
                         kAttentionBlock * (s->width + s->padded_time());
  return Finish(std::move(s), floats, args.threads);
}

int LaunchAttention(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(state);
  const int64_t hidden = s.heads * s.width;
  args.tiles->For(s.batch * s.heads, [&](int64_t tile, int thread) {
    const int64_t item = tile / s.heads, head = tile % s.heads;
    HeadForward h;
    h.qkv = args.in[0].as<const float>() + item * s.time * s.stride() + head * s.width;
    h.y = args.out[0].as<float>() + item * s.time * hidden + head * s.width;
    h.lse = args.out[1].as<float>() + tile * s.time;
    h.scratch = static_cast<float*>(args.scratch) + thread * s.thread_floats;
    HWY_DYNAMIC_DISPATCH(ForwardHead)(s, h);
  });
  return 0;
}

Bound BindAttentionGrad(const std::string&, const BindArgs& args) {
  auto s = MakeState(args.in[1].shape, *args.attrs, args.attrs->GetFloat("rotary_base"));
  const int64_t floats =
      s->time * s->width + 2 * s->padded_time() * s->width + s->padded_width() * s->time +
      kAttentionBlock * (2 * s->width + 2 * s->padded_width() + 2 * s->padded_time() + kGemmStrip);
  return Finish(std::move(s), floats, args.threads);
}

int LaunchAttentionGrad(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(state);
  const int64_t hidden = s.heads * s.width;
  args.tiles->For(s.batch * s.heads, [&](int64_t tile, int thread) {
    const int64_t item = tile / s.heads, head = tile % s.heads;
    const int64_t packed = item * s.time * s.stride() + head * s.width;
    const int64_t plain = item * s.time * hidden + head * s.width;
    HeadBackward h;
    h.dy = args.in[0].as<const float>() + plain;
    h.qkv = args.in[1].as<const float>() + packed;
    h.y = args.in[2].as<const float>() + plain;
    h.lse = args.in[3].as<const float>() + tile * s.time;
    h.dqkv = args.out[0].as<float>() + packed;
    h.scratch = static_cast<float*>(args.scratch) + thread * s.thread_floats;
    HWY_DYNAMIC_DISPATCH(BackwardHead)(s, h);
  });
  return 0;
}

Bound BindRotary(const std::string&, const BindArgs& args) {
  auto s = MakeState(args.in[0].shape, *args.attrs, args.attrs->GetFloat("base"));
  s->inverse = args.attrs->GetBool("inverse");
  return Finish(std::move(s), 0, args.threads);
}

int LaunchRotary(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(state);
  constexpr int64_t kPositions = 64;
  const int64_t positions = s.batch * s.time;
  args.tiles->For((positions + kPositions - 1) / kPositions, [&](int64_t tile, int) {
    const int64_t end = std::min(positions, (tile + 1) * kPositions);
    for (int64_t i = tile * kPositions; i < end; ++i) {
      HWY_DYNAMIC_DISPATCH(RotatePosition)
      (s, i % s.time, args.in[0].as<const float>() + i * s.stride(),
       args.out[0].as<float>() + i * s.stride());
    }
  });
  return 0;
}

}  // namespace

void RegisterAttentionCpu(KernelTable* table) {
  table->Add("rotary", DeviceKind::kCpu, {nullptr, BindRotary, LaunchRotary});
  table->Add("attention", DeviceKind::kCpu, {nullptr, BindAttention, LaunchAttention});
  table->Add("attention_grad", DeviceKind::kCpu, {nullptr, BindAttentionGrad, LaunchAttentionGrad});
}

}  // namespace weft
#endif  // HWY_ONCE
