// Test rows of attention and rotary embedding.
#include <cmath>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

// A packed qkv [batch, time, 3 * heads * width]. `part` is 0 for q, 1 for k, 2 for v.
struct Packed {
  int64_t batch, time, heads, width;
  int64_t At(int64_t b, int64_t t, int64_t part, int64_t h, int64_t i) const {
    return ((b * time + t) * 3 + part) * heads * width + h * width + i;
  }
};

Packed LayoutOf(const TensorMeta& qkv, const Attrs& attrs) {
  const int64_t heads = attrs.GetInt("heads");
  return {qkv.shape.dim(0), qkv.shape.dim(1), heads, qkv.shape.dim(2) / (3 * heads)};
}

Doubles Rotated(const Packed& p, const Doubles& x, double base, double sign) {
  Doubles y = x;
  const int64_t half = p.width / 2;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t t = 0; t < p.time; ++t) {
      for (int64_t c = 0; c < 2 * p.heads * half; ++c) {
        const int64_t part = c / (p.heads * half), h = c / half % p.heads, i = c % half;
        const double angle =
            sign * static_cast<double>(t) *
            std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(p.width));
        const double low = x[p.At(b, t, part, h, i)], high = x[p.At(b, t, part, h, i + half)];
        y[p.At(b, t, part, h, i)] = low * std::cos(angle) - high * std::sin(angle);
        y[p.At(b, t, part, h, i + half)] = high * std::cos(angle) + low * std::sin(angle);
      }
    }
  }
  return y;
}

std::vector<Doubles> RotaryReference(const RefArgs& r) {
  return {Rotated(LayoutOf(r.metas[0], r.attrs), r.in[0], r.attrs.GetFloat("base"),
                  r.attrs.GetBool("inverse") ? -1 : 1)};
}

// Scores of one query against the keys it sees.
Doubles ScoresOf(const Packed& p, const Doubles& qkv, int64_t b, int64_t h, int64_t t,
                 bool causal) {
  Doubles scores(causal ? t + 1 : p.time);
  for (size_t j = 0; j < scores.size(); ++j) {
    for (int64_t i = 0; i < p.width; ++i) {
      scores[j] += qkv[p.At(b, t, 0, h, i)] * qkv[p.At(b, static_cast<int64_t>(j), 1, h, i)] /
                   std::sqrt(static_cast<double>(p.width));
    }
  }
  return scores;
}

std::vector<Doubles> AttentionReference(const RefArgs& r) {
  const Packed p = LayoutOf(r.metas[0], r.attrs);
  const double base = r.attrs.GetFloat("rotary_base");
  const Doubles qkv = base == 0 ? r.in[0] : Rotated(p, r.in[0], base, 1);
  Doubles y(p.batch * p.time * p.heads * p.width), lse(p.batch * p.heads * p.time);
  for (int64_t row = 0; row < p.batch * p.heads * p.time; ++row) {
    const int64_t b = row / (p.heads * p.time), h = row / p.time % p.heads, t = row % p.time;
    const Doubles scores = ScoresOf(p, qkv, b, h, t, r.attrs.GetBool("causal"));
    double sum = 0;
    for (const double s : scores) sum += std::exp(s);
    lse[row] = std::log(sum);
    for (size_t j = 0; j < scores.size(); ++j) {
      for (int64_t i = 0; i < p.width; ++i) {
        y[((b * p.time + t) * p.heads + h) * p.width + i] +=
            std::exp(scores[j] - lse[row]) * qkv[p.At(b, static_cast<int64_t>(j), 2, h, i)];
      }
    }
  }
  return {y, lse};
}

// y and lse are taken as given, so the kernel's formula is followed: dS = P (dP - sum of dy y).
std::vector<Doubles> AttentionGradReference(const RefArgs& r) {
  const Packed p = LayoutOf(r.metas[1], r.attrs);
  const double base = r.attrs.GetFloat("rotary_base");
  const double scale = 1 / std::sqrt(static_cast<double>(p.width));
  const Doubles qkv = base == 0 ? r.in[1] : Rotated(p, r.in[1], base, 1);
  Doubles d(qkv.size());
  for (int64_t row = 0; row < p.batch * p.heads * p.time; ++row) {
    const int64_t b = row / (p.heads * p.time), h = row / p.time % p.heads, t = row % p.time;
    const Doubles scores = ScoresOf(p, qkv, b, h, t, r.attrs.GetBool("causal"));
    const int64_t plain = ((b * p.time + t) * p.heads + h) * p.width;
    double delta = 0;
    for (int64_t i = 0; i < p.width; ++i) delta += r.in[0][plain + i] * r.in[2][plain + i];
    for (int64_t j = 0; j < static_cast<int64_t>(scores.size()); ++j) {
      const double probability = std::exp(scores[j] - r.in[3][row]);
      double dp = 0;
      for (int64_t i = 0; i < p.width; ++i) dp += r.in[0][plain + i] * qkv[p.At(b, j, 2, h, i)];
      const double ds = probability * (dp - delta) * scale;
      for (int64_t i = 0; i < p.width; ++i) {
        d[p.At(b, t, 0, h, i)] += ds * qkv[p.At(b, j, 1, h, i)];
        d[p.At(b, j, 1, h, i)] += ds * qkv[p.At(b, t, 0, h, i)];
        d[p.At(b, j, 2, h, i)] += probability * r.in[0][plain + i];
      }
    }
  }
  return {base == 0 ? d : Rotated(p, d, base, -1)};
}

struct Size {
  int64_t batch, time, heads, width;
};

Attrs AttrsOf(const Size& s, bool causal, double base) {
  return {{"heads", s.heads}, {"causal", causal}, {"rotary_base", base}};
}

// Rows with more work than this leave the gradient to smaller ones.
constexpr int64_t kGradientWork = 1'000'000;

bool IsSmall(const Size& s) {
  return s.batch * s.heads * s.time * s.time * s.width <= kGradientWork;
}

OpCase Attention(const char* name, Size s, bool causal, double base) {
  return {.op = "attention",
          .name = name,
          .inputs = {F32({s.batch, s.time, 3 * s.heads * s.width})},
          .attrs = AttrsOf(s, causal, base),
          .relative = 1e-5,
          .absolute = 1e-5,
          .smooth = IsSmall(s),
          .reference = AttentionReference};
}

OpCase AttentionGrad(const char* name, Size s, bool causal, double base) {
  const Shape y = {s.batch, s.time, s.heads * s.width};
  return {.op = "attention_grad",
          .name = name,
          .inputs = {F32(y), F32({s.batch, s.time, 3 * s.heads * s.width}), F32(y),
                     F32({s.batch, s.heads, s.time}, 3, 4)},
          .attrs = AttrsOf(s, causal, base),
          .relative = 1e-5,
          .absolute = 2e-5,
          .reference = AttentionGradReference};
}

// The same with products that may round to TF32.
OpCase InTf32(OpCase c) {
  c.attrs.Set("tf32", true);
  c.relative = 2e-3;
  c.absolute = 4e-3;
  return c;
}

OpCase Rotary(const char* name, Size s, bool inverse) {
  return {.op = "rotary",
          .name = name,
          .inputs = {F32({s.batch, s.time, 3 * s.heads * s.width})},
          .attrs = {{"heads", s.heads}, {"base", 10000.0}, {"inverse", inverse}},
          .reference = RotaryReference};
}

}  // namespace

OpCases AttentionCases() {
  OpCases rows = {
      Rotary("forth", {2, 5, 2, 6}, false),
      Rotary("back", {1, 70, 3, 4}, true),
      Rotary("wide", {2, 40, 2, 64}, false),
      Attention("whole", {2, 5, 2, 3}, false, 0),
      Attention("causal", {2, 5, 2, 3}, true, 0),
      Attention("one_position", {1, 1, 1, 5}, true, 0),
      Attention("rotary", {1, 9, 2, 6}, true, 10000),
      Attention("step_shape", {1, 64, 2, 32}, true, 10000),
      Attention("two_blocks", {1, 75, 1, 40}, true, 0),
      Attention("two_blocks_whole", {1, 131, 2, 7}, false, 0),
      AttentionGrad("whole", {2, 5, 2, 3}, false, 0),
      AttentionGrad("causal", {2, 5, 2, 3}, true, 0),
      AttentionGrad("rotary", {1, 9, 2, 6}, true, 10000),
      AttentionGrad("step_shape", {1, 64, 2, 32}, true, 10000),
      AttentionGrad("two_blocks", {1, 75, 1, 40}, true, 0),
      AttentionGrad("two_blocks_whole", {1, 131, 2, 7}, false, 0),
  };
  // Widths that have kernels of their own, and lengths around the tiles of these.
  const struct {
    const char* name;
    Size size;
    bool causal;
    double base;
  } kTiled[] = {
      {"tiled_1_32", {2, 1, 2, 32}, true, 10000},
      {"tiled_5_64", {1, 5, 3, 64}, true, 10000},
      {"tiled_64_64", {1, 64, 2, 64}, false, 10000},
      {"tiled_80_32", {1, 80, 2, 32}, false, 0},
      {"tiled_128_32", {1, 128, 1, 32}, true, 10000},
      {"tiled_128_64", {1, 128, 1, 64}, false, 100},
      {"tiled_130_64", {1, 130, 1, 64}, true, 10000},
      {"tiled_200_32", {1, 200, 1, 32}, false, 10000},
      {"tiled_256_64", {1, 256, 1, 64}, true, 0},
      {"tiled_300_32", {1, 300, 1, 32}, true, 10000},
      {"tiled_300_64", {1, 300, 1, 64}, false, 0},
      {"tiled_70_128", {1, 70, 1, 128}, true, 10000},
      {"general_300_8", {1, 300, 1, 8}, true, 10000},
  };
  for (const auto& row : kTiled) {
    rows.push_back(Attention(row.name, row.size, row.causal, row.base));
    rows.push_back(AttentionGrad(row.name, row.size, row.causal, row.base));
  }
  rows.push_back(InTf32(Attention("tf32", {1, 90, 2, 32}, true, 10000)));
  rows.push_back(InTf32(AttentionGrad("tf32", {1, 90, 2, 32}, true, 10000)));
  return rows;
}

}  // namespace weft::testing
