// Test rows of the products.
#include <cmath>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

// y[m, n] of one pair of matrices, either one stored transposed.
void Multiply(const double* a, const double* b, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
              double* y) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += (ta ? a[p * m + i] : a[i * k + p]) * (tb ? b[j * k + p] : b[p * n + j]);
      }
      y[i * n + j] = sum;
    }
  }
}

std::vector<Doubles> MatmulReference(const RefArgs& r) {
  const bool ta = r.attrs.GetBool("transpose_a"), tb = r.attrs.GetBool("transpose_b");
  const Shape &a = r.metas[0].shape, &b = r.metas[1].shape, &y = r.out_metas[0].shape;
  const int64_t m = y.dim(-2), n = y.dim(-1), k = a.dim(ta ? -2 : -1);
  Doubles result(y.elements());
  for (int64_t i = 0; m * n > 0 && i < y.elements() / (m * n); ++i) {
    Multiply(r.in[0].data() + i * m * k, r.in[1].data() + (b.rank() < a.rank() ? 0 : i * k * n), m,
             n, k, ta, tb, result.data() + i * m * n);
  }
  return {result};
}

Doubles LinearOf(const RefArgs& r) {
  const int64_t n = r.out_metas[0].shape.dim(-1), k = r.metas[0].shape.dim(-1);
  const int64_t m = n == 0 ? 0 : r.out_metas[0].elements() / n;
  Doubles y(m * n);
  Multiply(r.in[0].data(), r.in[1].data(), m, n, k, false, r.attrs.GetBool("transpose_w"),
           y.data());
  for (int64_t i = 0; r.in.size() > 2 && i < m * n; ++i) y[i] += r.in[2][i % n];
  return y;
}

std::vector<Doubles> LinearReference(const RefArgs& r) { return {LinearOf(r)}; }

std::vector<Doubles> LinearGeluReference(const RefArgs& r) {
  const Doubles h = LinearOf(r);
  Doubles y = h;
  for (double& x : y) {
    x = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return {y, h};
}

std::vector<Doubles> GradGeluReference(const RefArgs& r) {
  const bool tw = r.attrs.GetBool("transpose_w");
  const int64_t n = r.out_metas[0].shape.dim(-1), k = r.metas[0].shape.dim(-1);
  const int64_t m = r.out_metas[0].elements() / n;
  Doubles dh(m * n);
  Multiply(r.in[0].data(), r.in[1].data(), m, n, k, false, tw, dh.data());
  const double a = std::sqrt(2 / M_PI), b = 0.044715;
  for (int64_t i = 0; i < m * n; ++i) {
    const double x = r.in[2][i], t = std::tanh(a * (x + b * x * x * x));
    dh[i] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * b * x * x);
  }
  return {dh};
}

std::vector<Doubles> GradGeluBiasReference(const RefArgs& r) {
  std::vector<Doubles> out = GradGeluReference(r);
  const int64_t n = r.out_metas[1].elements();
  Doubles sums(n, 0.0);
  for (size_t i = 0; i < out[0].size(); ++i) sums[i % n] += out[0][i];
  out.push_back(sums);
  return out;
}

std::vector<Doubles> GradWReference(const RefArgs& r) {
  const bool tw = r.attrs.GetBool("transpose_w");
  const int64_t k = r.metas[0].shape.dim(-1), n = r.metas[1].shape.dim(-1);
  const int64_t rows = k == 0 ? 0 : r.metas[0].elements() / k;
  Doubles dw(k * n);
  const double *x = r.in[0].data(), *dy = r.in[1].data();
  Multiply(tw ? dy : x, tw ? x : dy, tw ? n : k, tw ? k : n, rows, true, false, dw.data());
  return {dw};
}

OpCase Matmul(const char* name, Shape a, Shape b, bool ta, bool tb) {
  return {.op = "matmul",
          .name = name,
          .inputs = {F32(a), F32(b)},
          .attrs = {{"transpose_a", ta}, {"transpose_b", tb}},
          .relative = 1e-5,
          .absolute = 1e-5,
          .reference = MatmulReference};
}

OpCase Linear(const char* op, const char* name, Shape x, Shape w, int64_t bias, bool tw) {
  OpCase c{.op = op,
           .name = name,
           .inputs = {F32(x), F32(w)},
           .attrs = {{"transpose_w", tw}},
           .relative = 1e-5,
           .absolute = 2e-5,
           .reference = std::string(op) == "linear" ? LinearReference : LinearGeluReference};
  if (bias > 0) c.inputs.push_back(F32({bias}));
  return c;
}

OpCase GradGelu(const char* name, Shape dy, Shape w, bool tw, double most = 4) {
  Shape h = dy;
  h.set_dim(-1, w.dim(tw ? 0 : 1));
  return {.op = "linear_grad_gelu",
          .name = name,
          .inputs = {F32(dy), F32(w), F32(h, -most, most)},
          .attrs = {{"transpose_w", tw}},
          .relative = 1e-5,
          .absolute = 2e-5,
          .reference = GradGeluReference};
}

OpCase GradGeluBias(const char* name, Shape dy, Shape w, bool tw) {
  OpCase c = GradGelu(name, dy, w, tw);
  c.op = "linear_grad_gelu_bias";
  c.reference = GradGeluBiasReference;
  c.absolute = 2e-4;
  return c;
}

OpCase GradW(const char* name, Shape x, Shape dy, bool tw) {
  return {.op = "linear_grad_w",
          .name = name,
          .inputs = {F32(x), F32(dy)},
          .attrs = {{"transpose_w", tw}},
          .relative = 1e-5,
          .absolute = 1e-4,
          .reference = GradWReference};
}

// Eleven bits of each factor, where a device takes the attribute at its word.
OpCase Tf32(OpCase c) {
  c.attrs.Set("tf32", true);
  c.relative = 4e-3;
  c.absolute = 2e-2;
  return c;
}

}  // namespace

OpCases MatmulCases() {
  return {
      Matmul("plain", {3, 5}, {5, 4}, false, false),
      Matmul("transposed_a", {5, 3}, {5, 4}, true, false),
      Matmul("transposed_b", {3, 5}, {4, 5}, false, true),
      Matmul("both_transposed", {5, 3}, {4, 5}, true, true),
      Matmul("batched", {2, 3, 9, 7}, {2, 3, 7, 35}, false, false),
      Matmul("batched_both_transposed", {3, 7, 9}, {3, 35, 7}, true, true),
      Matmul("shared_b", {2, 3, 5}, {5, 33}, false, false),
      Matmul("shared_b_transposed", {2, 3, 5}, {4, 5}, false, true),
      Matmul("shared_b_transposed_a", {2, 5, 3}, {5, 4}, true, false),
      Matmul("several_tiles", {1, 150, 40}, {1, 141, 40}, false, true),
      Matmul("batched_wide", {3, 16, 64}, {3, 32, 64}, false, true),
      Matmul("no_rows", {2, 0, 5}, {2, 5, 4}, false, false),
      Matmul("nothing_contracted", {3, 0}, {0, 4}, false, false),
      Linear("linear", "bias", {2, 3, 5}, {5, 7}, 7, false),
      Linear("linear", "no_bias", {6, 5}, {5, 33}, 0, false),
      Linear("linear", "transposed", {6, 5}, {7, 5}, 7, true),
      Linear("linear", "one_row", {1, 5}, {5, 7}, 7, false),
      Linear("linear", "several_tiles", {140, 36}, {36, 100}, 100, false),
      Linear("linear", "several_tiles_transposed", {140, 37}, {100, 37}, 0, true),
      Linear("linear", "several_blocks", {9, 2050}, {2050, 70}, 70, false),
      Linear("linear", "wide", {96, 64}, {64, 128}, 128, false),
      Tf32(Linear("linear", "tf32", {96, 64}, {128, 64}, 128, true)),
      Linear("linear", "nothing_contracted", {3, 0}, {0, 4}, 4, false),
      Linear("linear", "no_rows", {0, 5}, {5, 7}, 7, false),
      Linear("linear_gelu", "bias", {2, 3, 5}, {5, 7}, 7, false),
      Linear("linear_gelu", "transposed_no_bias", {11, 16}, {40, 16}, 0, true),
      Linear("linear_gelu", "wide", {96, 64}, {128, 64}, 128, true),
      Tf32(Linear("linear_gelu", "tf32", {96, 64}, {64, 128}, 128, false)),
      Linear("linear_gelu", "nothing_contracted", {3, 0}, {0, 4}, 4, false),
      GradGelu("plain", {2, 3, 5}, {5, 7}, false),
      GradGelu("transposed", {11, 16}, {40, 16}, true),
      GradGelu("several_tiles", {140, 36}, {36, 100}, false),
      GradGelu("wide", {96, 128}, {64, 128}, true),
      Tf32(GradGelu("tf32", {96, 128}, {128, 64}, false)),
      GradGelu("flat", {96, 64}, {128, 64}, true, 60),
      GradGelu("nothing_contracted", {3, 0}, {0, 4}, false),
      GradGeluBias("plain", {2, 3, 5}, {5, 7}, false),
      GradGeluBias("transposed", {11, 16}, {40, 16}, true),
      GradGeluBias("several_tiles", {140, 36}, {36, 100}, false),
      GradGeluBias("wide", {300, 64}, {136, 64}, true),
      GradGeluBias("many_rows", {1037, 8}, {8, 16}, false),
      Tf32(GradGeluBias("tf32", {96, 128}, {128, 64}, false)),
      GradGeluBias("nothing_contracted", {3, 0}, {0, 4}, false),
      GradW("plain", {2, 3, 5}, {2, 3, 7}, false),
      GradW("transposed", {6, 5}, {6, 7}, true),
      GradW("several_chunks", {1037, 9}, {1037, 37}, false),
      GradW("several_blocks", {17, 130}, {17, 140}, true),
      GradW("many_rows", {4096, 16}, {4096, 8}, true),
      GradW("wide", {256, 64}, {256, 48}, false),
      Tf32(GradW("tf32", {256, 64}, {256, 48}, true)),
      GradW("no_rows", {0, 5}, {0, 7}, false),
  };
}

}  // namespace weft::testing
