// Test rows of the norms.
#include <cmath>
#include <string>

#include "absl/strings/match.h"

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

struct RowStats {
  double mean = 0, rstd = 0;
};

RowStats StatsOf(const double* x, int64_t n, bool centred, double eps) {
  RowStats stats;
  for (int64_t i = 0; centred && i < n; ++i) stats.mean += x[i] / static_cast<double>(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - stats.mean) * (x[i] - stats.mean);
  stats.rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  return stats;
}

std::vector<Doubles> NormOf(const RefArgs& r, bool centred, bool adds) {
  const size_t weight = adds ? 2 : 1;
  const int64_t n = r.metas[0].shape.dim(-1), rows = r.metas[0].elements() / n;
  Doubles s = r.in[0], mean, rstd;
  for (size_t i = 0; adds && i < s.size(); ++i) s[i] += r.in[1][i];
  Doubles y(s.size());
  for (int64_t row = 0; row < rows; ++row) {
    const RowStats stats = StatsOf(s.data() + row * n, n, centred, r.attrs.GetFloat("eps", 1e-5));
    mean.push_back(stats.mean);
    rstd.push_back(stats.rstd);
    for (int64_t i = 0; i < n; ++i) {
      y[row * n + i] = (s[row * n + i] - stats.mean) * stats.rstd * r.in[weight][i];
      if (r.in.size() > weight + 1) y[row * n + i] += r.in[weight + 1][i];
    }
  }
  std::vector<Doubles> out = {y};
  if (adds) out.push_back(s);
  if (centred) out.push_back(mean);
  out.push_back(rstd);
  return out;
}

std::vector<Doubles> RmsReference(const RefArgs& r) { return NormOf(r, false, false); }
std::vector<Doubles> LayerReference(const RefArgs& r) { return NormOf(r, true, false); }
std::vector<Doubles> AddRmsReference(const RefArgs& r) { return NormOf(r, false, true); }
std::vector<Doubles> AddLayerReference(const RefArgs& r) { return NormOf(r, true, true); }

// With x' the normalized x and g = dy weight: dx = rstd (g - mean(g) - x' mean(g x')); RMS norm has
// no mean(g). mean and rstd are inputs here, whatever their values.
std::vector<Doubles> GradReference(const RefArgs& r, bool centred, bool sums) {
  const size_t residual = centred ? 5 : 4;
  const int64_t n = r.metas[1].shape.dim(-1), rows = r.metas[1].elements() / n;
  Doubles dx(rows * n), dweight(n), dbias(n);
  for (int64_t row = 0; row < rows; ++row) {
    const double mean = centred ? r.in[3][row] : 0, rstd = r.in[residual - 1][row];
    double level = 0, along = 0;
    const auto normal = [&](int64_t i) { return (r.in[1][row * n + i] - mean) * rstd; };
    for (int64_t i = 0; i < n; ++i) {
      const double dy = r.in[0][row * n + i], g = dy * r.in[2][i];
      level += centred ? g / static_cast<double>(n) : 0;
      along += g * normal(i) / static_cast<double>(n);
      dweight[i] += dy * normal(i);
      dbias[i] += dy;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double g = r.in[0][row * n + i] * r.in[2][i];
      dx[row * n + i] = rstd * (g - level - normal(i) * along);
      if (r.in.size() > residual) dx[row * n + i] += r.in[residual][row * n + i];
    }
  }
  std::vector<Doubles> out = {dx, dweight};
  if (centred) out.push_back(dbias);
  if (sums) {
    out.push_back(Doubles(n));
    for (int64_t i = 0; i < rows * n; ++i) out.back()[i % n] += dx[i];
  }
  return out;
}

OpCase Norm(const char* op, const std::string& name, Shape x, bool adds, bool bias,
            RefFn reference) {
  OpCase c{.op = op,
           .name = name,
           .inputs = {F32(x, -2, 3)},
           .attrs = {{"eps", 1e-5}},
           .relative = 2e-5,
           .absolute = 2e-5,
           .reference = std::move(reference)};
  if (adds) c.inputs.push_back(F32(x, -2, 3));
  c.inputs.push_back(F32({x.dim(-1)}, 0.5, 1.5));
  if (bias) c.inputs.push_back(F32({x.dim(-1)}));
  return c;
}

OpCase Grad(const char* op, const std::string& name, Shape x, bool residual) {
  const Shape rows(x.begin(), x.end() - 1);
  const bool centred = absl::StartsWith(op, "layer"), sums = absl::EndsWith(op, "_sums");
  OpCase c{.op = op,
           .name = name,
           .inputs = {F32(x), F32(x, -2, 3), F32({x.dim(-1)}, 0.5, 1.5)},
           .relative = 2e-5,
           .absolute = 5e-5,
           .reference = [=](const RefArgs& r) { return GradReference(r, centred, sums); }};
  if (centred) c.inputs.push_back(F32(rows, 0.2, 0.8));
  c.inputs.push_back(F32(rows, 0.5, 1));
  if (residual) c.inputs.push_back(F32(x));
  return c;
}

}  // namespace

OpCases NormCases() {
  OpCases cases = {
      Norm("rms_norm", "rows", {2, 3, 33}, false, false, RmsReference),
      Norm("rms_norm", "one_row", {7}, false, false, RmsReference),
      Norm("rms_norm", "several_tiles", {131, 20}, false, false, RmsReference),
      Norm("layer_norm", "bias", {2, 3, 33}, false, true, LayerReference),
      Norm("layer_norm", "no_bias", {5, 128}, false, false, LayerReference),
      Norm("add_rms_norm", "rows", {5, 37}, true, false, AddRmsReference),
      Norm("add_layer_norm", "bias", {5, 37}, true, true, AddLayerReference),
      Norm("add_layer_norm", "no_bias", {2, 2, 16}, true, false, AddLayerReference),
      Grad("rms_norm_grad", "rows", {5, 37}, false),
      Grad("rms_norm_grad", "residual", {2, 3, 48}, true),
      Grad("layer_norm_grad", "rows", {5, 37}, false),
      Grad("layer_norm_grad", "residual_several_tiles", {150, 19}, true),
      Grad("layer_norm_grad", "no_rows", {0, 19}, false),
      Grad("rms_norm_grad", "many_rows", {6000, 19}, false),
      Grad("layer_norm_grad", "many_rows", {11000, 8}, true),
      Grad("rms_norm_grad_sums", "rows", {5, 37}, false),
      Grad("rms_norm_grad_sums", "many_rows", {6000, 19}, true),
      Grad("layer_norm_grad_sums", "residual", {2, 3, 48}, true),
      Grad("layer_norm_grad_sums", "many_rows", {11000, 8}, false),
      Grad("layer_norm_grad_sums", "no_rows", {0, 19}, false),
  };
  // Devices cut rows by their width: into parts of a warp, a warp, several, with vectors and
  // without.
  for (const int64_t width : {64, 72, 100, 200, 301, 500, 768, 1000, 1031, 2056, 4104, 8200}) {
    const std::string name = "width_" + std::to_string(width);
    const int64_t rows = width < 1000 ? 11 : 3;
    const bool odd = width % 8 != 0;
    cases.push_back(Norm("layer_norm", name, {rows, width}, false, odd, LayerReference));
    cases.push_back(Norm("add_layer_norm", name, {rows, width}, true, !odd, AddLayerReference));
    cases.push_back(Norm("add_rms_norm", name, {rows, width}, true, false, AddRmsReference));
    for (OpCase& c : cases) c.smooth = c.smooth && c.name != name;
    cases.push_back(Grad("layer_norm_grad", name, {2 * rows, width}, !odd));
    cases.push_back(Grad("rms_norm_grad", name, {rows, width}, odd));
    cases.push_back(Grad("layer_norm_grad_sums", name, {rows, width}, odd));
    cases.push_back(Grad("rms_norm_grad_sums", name, {2 * rows, width}, !odd));
  }
  cases.push_back(Grad("layer_norm_grad", "longest", {3, 16384}, true));
  cases.push_back(Grad("rms_norm_grad", "longest_odd", {2, 16383}, true));
  return cases;
}

}  // namespace weft::testing
