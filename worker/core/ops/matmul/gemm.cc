#include "worker/core/ops/matmul/gemm.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/matmul/gemm.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

#include "worker/core/device/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The vector of the inner loop and its tile: kRows x (2 vectors) sums stay in registers.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
// Highway's baseline has one lane; the compiler's own vectors of four do better.
using Lanes = float __attribute__((vector_size(16)));
using LooseLanes = float __attribute__((vector_size(16), aligned(4), may_alias));
constexpr int64_t kLanes = 4;
constexpr int kRows = 4;
HWY_INLINE Lanes LoadLanes(const float* p) { return *reinterpret_cast<const LooseLanes*>(p); }
HWY_INLINE void StoreLanes(Lanes v, float* p) { *reinterpret_cast<LooseLanes*>(p) = v; }
HWY_INLINE Lanes Splat(float x) { return Lanes{x, x, x, x}; }
HWY_INLINE Lanes MultiplyAdd(Lanes a, Lanes b, Lanes c) { return a * b + c; }
HWY_INLINE Lanes AddLanes(Lanes a, Lanes b) { return a + b; }
#else
using Tag = hn::CappedTag<float, 16>;
using Lanes = hn::Vec<Tag>;
constexpr int64_t kLanes = hn::MaxLanes(Tag());
// Two FMA units of four cycles' latency want 8 sums in flight; AVX2 has 16 registers, AVX-512
// has 32.
constexpr int kRows = kLanes == 16 ? 8 : 4;
HWY_INLINE Lanes LoadLanes(const float* p) { return hn::LoadU(Tag(), p); }
HWY_INLINE void StoreLanes(Lanes v, float* p) { hn::StoreU(v, Tag(), p); }
HWY_INLINE Lanes Splat(float x) { return hn::Set(Tag(), x); }
HWY_INLINE Lanes MultiplyAdd(Lanes a, Lanes b, Lanes c) { return hn::MulAdd(a, b, c); }
HWY_INLINE Lanes AddLanes(Lanes a, Lanes b) { return hn::Add(a, b); }
#endif
constexpr int64_t kWide = 2 * kLanes;

struct Tile {
  const float* a;
  int64_t a_row, a_k;  // strides of the left operand
  const float* b;      // at its column within the panel
  int64_t k;
  float* c;
  int64_t c_stride;
  const float* bias;  // null or kWide values
  bool accumulate;
};

template <int kCount>
HWY_INLINE void MultiplyTile(const Tile& t, int64_t a_k) {
  Lanes sum[kCount][2];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
    sum[r][0] = t.accumulate ? LoadLanes(t.c + r * t.c_stride) : Splat(0);
    sum[r][1] = t.accumulate ? LoadLanes(t.c + r * t.c_stride + kLanes) : Splat(0);
  }
  const float* a = t.a;
  const float* b = t.b;
  const int64_t row = t.a_row;
  for (int64_t k = t.k; k > 0; --k, a += a_k, b += kGemmPanel) {
    const Lanes b0 = LoadLanes(b), b1 = LoadLanes(b + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const Lanes x = Splat(a[r * row]);
      sum[r][0] = MultiplyAdd(x, b0, sum[r][0]);
      sum[r][1] = MultiplyAdd(x, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
    if (t.bias != nullptr) {
      sum[r][0] = AddLanes(sum[r][0], LoadLanes(t.bias));
      sum[r][1] = AddLanes(sum[r][1], LoadLanes(t.bias + kLanes));
    }
    StoreLanes(sum[r][0], t.c + r * t.c_stride);
    StoreLanes(sum[r][1], t.c + r * t.c_stride + kLanes);
  }
}

// Noinline: the compiler keeps the sums in registers when the loop has a function of its own.
template <int kCount>
HWY_NOINLINE void RowTile(const Tile& t) {
  MultiplyTile<kCount>(t, 1);
}
template <int kCount>
HWY_NOINLINE void StripTile(const Tile& t) {
  Tile fixed = t;
  fixed.a_row = 1;
  MultiplyTile<kCount>(fixed, kGemmStrip);
}

template <int kCount>
HWY_INLINE void RunTile(const Tile& t) {
  if (t.a_k == 1) {
    RowTile<kCount>(t);
  } else {
    StripTile<kCount>(t);
  }
}

// `rows` <= kRows rows of full width.
void TileOfRows(Tile t, int64_t rows) {
  if (rows == kRows) {
    RunTile<kRows>(t);
    return;
  }
  for (; rows > 0; --rows) {
    RunTile<1>(t);
    t.a += t.a_row;
    t.c += t.c_stride;
  }
}

void GeluRow(const float* h, float* y, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(FastGelu(d, hn::LoadU(d, h + i)), d, y + i);
  for (const hn::CappedTag<float, 1> one; i < n; ++i) {
    hn::StoreU(FastGelu(one, hn::LoadU(one, h + i)), one, y + i);
  }
}

// c times the slope of gelu at h: s + x u' s (1 - s) where s = 1 / (1 + e^-u), u = x (a + b x^2).
template <class D>
HWY_INLINE void MultiplyBySlope(D d, const float* h, float* c) {
  constexpr float kA = 2 * 0.7978845608f, kB = kA * 0.044715f;
  // The slope is 0 or 1 further out; the limit keeps 0 * infinity away.
  const auto x = hn::Max(hn::Set(d, -12.0f), hn::Min(hn::Set(d, 12.0f), hn::LoadU(d, h)));
  const auto square = hn::Mul(x, x);
  const auto u = hn::Mul(x, hn::MulAdd(square, hn::Set(d, kB), hn::Set(d, kA)));
  const auto du = hn::MulAdd(square, hn::Set(d, 3 * kB), hn::Set(d, kA));
  const auto e = FastExp(d, hn::Neg(hn::Abs(u)));
  const auto one = hn::Set(d, 1.0f);
  const auto inverse = hn::Div(one, hn::Add(one, e));
  const auto s = hn::Mul(hn::IfThenElse(hn::Lt(u, hn::Zero(d)), e, one), inverse);
  const auto spread = hn::Mul(hn::Mul(e, inverse), inverse);
  const auto slope = hn::MulAdd(hn::Mul(x, du), spread, s);
  hn::StoreU(hn::Mul(hn::LoadU(d, c), slope), d, c);
}

void SlopeRow(const float* h, float* c, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) MultiplyBySlope(d, h + i, c + i);
  for (const hn::CappedTag<float, 1> one; i < n; ++i) MultiplyBySlope(one, h + i, c + i);
}

// A tile of fewer columns than kWide goes through a full one beside.
void NarrowTile(const Tile& t, int64_t rows, int64_t columns) {
  float sums[kRows * kWide] = {};
  float bias[kWide] = {};
  Tile full = t;
  full.c = sums;
  full.c_stride = kWide;
  if (t.bias != nullptr) {
    std::copy_n(t.bias, columns, bias);
    full.bias = bias;
  }
  for (int64_t r = 0; t.accumulate && r < rows; ++r) {
    std::copy_n(t.c + r * t.c_stride, columns, sums + r * kWide);
  }
  TileOfRows(full, rows);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(sums + r * kWide, columns, t.c + r * t.c_stride);
}

void MultiplyAll(const Product& p) {
  const bool strips = p.a_stride == 0;
  for (int64_t i = 0; i < p.m; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, p.m - i);
    Tile t;
    t.a =
        strips ? p.a + i / kGemmStrip * (kGemmStrip * p.k) + i % kGemmStrip : p.a + i * p.a_stride;
    t.a_row = strips ? 1 : p.a_stride;
    t.a_k = strips ? kGemmStrip : 1;
    t.k = p.k;
    t.c_stride = p.c_stride;
    t.accumulate = p.accumulate;
    for (int64_t j = 0; j < p.n; j += kWide) {
      t.b = p.b + j / kGemmPanel * p.b_stride + j % kGemmPanel;
      t.c = p.c + i * p.c_stride + j;
      t.bias = p.bias == nullptr ? nullptr : p.bias + j;
      if (p.n - j >= kWide) {
        TileOfRows(t, rows);
      } else {
        NarrowTile(t, rows, p.n - j);
      }
    }
    for (int64_t r = i; p.gelu != nullptr && r < i + rows; ++r) {
      GeluRow(p.c + r * p.c_stride, p.gelu + r * p.c_stride, p.n);
    }
    for (int64_t r = i; p.slope != nullptr && r < i + rows; ++r) {
      SlopeRow(p.slope + r * p.c_stride, p.c + r * p.c_stride, p.n);
    }
  }
}

// Copies `count` floats, a multiple of 8.
HWY_INLINE void CopyEights(const float* from, int64_t count, float* to) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  std::memcpy(to, from, count * sizeof(float));
#else
  const hn::CappedTag<float, 16> d;
  const hn::FixedTag<float, 8> half;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  if (i < count) hn::StoreU(hn::LoadU(half, from + i), half, to + i);
#endif
}

// Packs rows [0, k) of `columns` values, `stride` apart, as groups of `group` columns, [k][group]
// each, zeros behind. A row is read from end to end.
template <int64_t kGroup>
void PackGroups(const float* data, int64_t stride, int64_t k, int64_t columns, float* packed) {
  const int64_t whole = columns / kGroup * kGroup;
  for (int64_t p = 0; p < k; ++p) {
    const float* row = data + p * stride;
    float* to = packed + p * kGroup;
    int64_t j = 0;
    for (; j < whole; j += kGroup) CopyEights(row + j, kGroup, to + j * k);
    if (j == columns) continue;
    for (int64_t c = 0; c < kGroup; ++c) to[j * k + c] = j + c < columns ? row[j + c] : 0.0f;
  }
}

void PackStrips(const float* data, int64_t stride, int64_t k, int64_t columns, float* strips) {
  PackGroups<kGemmStrip>(data, stride, k, columns, strips);
}
void PackPanels(const float* data, int64_t stride, int64_t k, int64_t columns, float* panels) {
  PackGroups<kGemmPanel>(data, stride, k, columns, panels);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(MultiplyAll);
HWY_EXPORT(PackStrips);
HWY_EXPORT(PackPanels);

namespace {

using Quad = float __attribute__((vector_size(16)));
using LooseQuad = float __attribute__((vector_size(16), aligned(4), may_alias));

// panel[p][j] = data[j * stride + p], in squares of 4 x 4.
void TransposeInto(const float* data, int64_t stride, int64_t k, int64_t columns, float* panel) {
  using Index = int __attribute__((vector_size(16)));
  constexpr Index kLow = {0, 4, 1, 5}, kHigh = {2, 6, 3, 7};
  constexpr Index kFirst = {0, 1, 4, 5}, kSecond = {2, 3, 6, 7};
  int64_t j = 0;
  for (; j + 4 <= columns; j += 4) {
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      const float* source = data + j * stride + p;
      const Quad r0 = *reinterpret_cast<const LooseQuad*>(source);
      const Quad r1 = *reinterpret_cast<const LooseQuad*>(source + stride);
      const Quad r2 = *reinterpret_cast<const LooseQuad*>(source + 2 * stride);
      const Quad r3 = *reinterpret_cast<const LooseQuad*>(source + 3 * stride);
      const Quad low01 = __builtin_shuffle(r0, r1, kLow), high01 = __builtin_shuffle(r0, r1, kHigh);
      const Quad low23 = __builtin_shuffle(r2, r3, kLow), high23 = __builtin_shuffle(r2, r3, kHigh);
      float* target = panel + p * kGemmPanel + j;
      *reinterpret_cast<LooseQuad*>(target) = __builtin_shuffle(low01, low23, kFirst);
      *reinterpret_cast<LooseQuad*>(target + kGemmPanel) = __builtin_shuffle(low01, low23, kSecond);
      *reinterpret_cast<LooseQuad*>(target + 2 * kGemmPanel) =
          __builtin_shuffle(high01, high23, kFirst);
      *reinterpret_cast<LooseQuad*>(target + 3 * kGemmPanel) =
          __builtin_shuffle(high01, high23, kSecond);
    }
    for (; p < k; ++p) {
      for (int64_t c = j; c < j + 4; ++c) panel[p * kGemmPanel + c] = data[c * stride + p];
    }
  }
  for (; j < columns; ++j) {
    for (int64_t p = 0; p < k; ++p) panel[p * kGemmPanel + j] = data[j * stride + p];
  }
}

}  // namespace

void Multiply(const Product& product) { HWY_DYNAMIC_DISPATCH(MultiplyAll)(product); }

void PackPanel(const float* data, int64_t row_stride, int64_t column_stride, int64_t k,
               int64_t columns, float* panel) {
  if (column_stride == 1) {
    HWY_DYNAMIC_DISPATCH(PackPanels)(data, row_stride, k, columns, panel);
    return;
  }
  if (columns < kGemmPanel) std::memset(panel, 0, k * kGemmPanel * sizeof(float));
  TransposeInto(data, column_stride, k, columns, panel);
}

void PackStrip(const float* data, int64_t stride, int64_t k, int64_t rows, float* strip) {
  HWY_DYNAMIC_DISPATCH(PackStrips)(data, stride, k, rows, strip);
}

void MultiplyRows(const RowProduct& product, float* scratch) {
  const RowProduct& r = product;
  float* strips = scratch;
  float* panels = strips + RoundUp(r.p, kGemmStrip) * kGemmRows;
  Product p;
  p.a = strips;
  p.b = panels;
  p.m = r.p;
  p.n = r.q;
  p.c = r.c;
  p.c_stride = r.c_stride;
  int64_t row = 0;
  do {  // once for no rows too: the result is written
    p.k = std::min(kGemmRows, r.rows - row);
    p.b_stride = p.k * kGemmPanel;
    p.accumulate = r.accumulate || row != 0;
    HWY_DYNAMIC_DISPATCH(PackStrips)
    (r.left + row * r.left_stride, r.left_stride, p.k, r.p, strips);
    HWY_DYNAMIC_DISPATCH(PackPanels)
    (r.right + row * r.right_stride, r.right_stride, p.k, r.q, panels);
    Multiply(p);
    row += p.k;
  } while (row < r.rows);
}

}  // namespace weft
#endif  // HWY_ONCE
