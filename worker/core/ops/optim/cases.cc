// Test rows of the optimizers.
#include <algorithm>
#include <cmath>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

double ClipOf(const RefArgs& r, size_t norm) {
  const double clip = r.attrs.GetFloat("clip_norm");
  return clip <= 0 || r.in.size() <= norm ? 1 : std::min(1.0, clip / (r.in[norm][0] + 1e-6));
}

std::vector<Doubles> ScheduleReference(const RefArgs& r) {
  const double step = r.in[0][0], base = r.attrs.GetFloat("base"), least = r.attrs.GetFloat("min");
  const auto warmup = static_cast<double>(r.attrs.GetInt("warmup"));
  const auto total = static_cast<double>(r.attrs.GetInt("total"));
  if (step < warmup) return {{base * (step + 1) / warmup}};
  if (r.attrs.GetString("decay") != "cosine") return {{base}};
  const double part = std::min(1.0, (step - warmup) / (total - warmup));
  return {{least + (base - least) * (1 + std::cos(M_PI * part)) / 2}};
}

std::vector<Doubles> GradNormReference(const RefArgs& r) {
  double sum = 0;
  for (const double g : r.in[0]) sum += g * g;
  return {{std::sqrt(sum) / r.in[1][0]}};
}

std::vector<Doubles> SgdReference(const RefArgs& r) {
  const double clamp = r.attrs.GetFloat("clamp"), clip = ClipOf(r, 4);
  Doubles param = r.in[0];
  for (size_t i = 0; i < param.size(); ++i) {
    double g = r.in[1][i] / r.in[2][0];
    if (clamp > 0) g = std::clamp(g, -clamp, clamp);
    param[i] -= r.in[3][0] * clip * g;
  }
  return {param};
}

std::vector<Doubles> AdamwReference(const RefArgs& r) {
  const double b1 = r.attrs.GetFloat("beta1", 0.9), b2 = r.attrs.GetFloat("beta2", 0.999);
  const double lr = r.in[5][0], t = r.in[6][0] + 1, clip = ClipOf(r, 7);
  const std::vector<int64_t> ranges = r.attrs.GetInts("decay_ranges");
  Doubles param = r.in[0], m = r.in[1], v = r.in[2];
  for (size_t i = 0; i < param.size(); ++i) {
    const double g = r.in[3][i] / r.in[4][0] * clip;
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    for (size_t k = 0; k < ranges.size(); k += 2) {
      const bool inside =
          static_cast<int64_t>(i) >= ranges[k] && static_cast<int64_t>(i) < ranges[k + 1];
      if (inside) param[i] -= lr * r.attrs.GetFloat("weight_decay") * r.in[0][i];
    }
    param[i] -= lr * (m[i] / (1 - std::pow(b1, t))) /
                (std::sqrt(v[i] / (1 - std::pow(b2, t))) + r.attrs.GetFloat("eps", 1e-8));
  }
  return {param, m, v};
}

OpInput Step(int64_t step) { return {{DType::kI64, {}}, 0, 1, {static_cast<double>(step)}}; }
OpInput Scalar(double value) { return {{DType::kF32, {}}, 0, 1, {value}}; }

OpCase Schedule(const char* name, int64_t step, const char* decay) {
  return {.op = "lr_schedule",
          .name = name,
          .inputs = {Step(step)},
          .attrs = {{"base", 1e-3},
                    {"min", 1e-4},
                    {"warmup", int64_t{10}},
                    {"total", int64_t{100}},
                    {"decay", std::string(decay)}},
          .relative = 1e-6,
          .absolute = 1e-11,
          .reference = ScheduleReference};
}

OpCase Sgd(const char* name, int64_t n, Attrs attrs, bool norm) {
  OpCase c{.op = "sgd",
           .name = name,
           .inputs = {F32({n}), F32({n}, -30, 30), Scalar(7), Scalar(0.25)},
           .attrs = std::move(attrs),
           .reference = SgdReference};
  if (norm) c.inputs.push_back(Scalar(2.5));
  return c;
}

OpCase Adamw(const char* name, int64_t n, int64_t step, Attrs attrs, bool norm) {
  OpCase c{.op = "adamw",
           .name = name,
           .inputs = {F32({n}), F32({n}), F32({n}, 0.01, 1), F32({n}, -30, 30), Scalar(7),
                      Scalar(0.01), Step(step)},
           .attrs = std::move(attrs),
           .reference = AdamwReference};
  if (norm) c.inputs.push_back(Scalar(2.5));
  return c;
}

// `c` with the bf16 copy: the same results, then them rounded. The tolerance is bf16's; that of the
// f32 results is held by the rows without a copy, which share their code.
OpCase Mixed(OpCase c, bool stochastic) {
  c.op += "_mixed";
  c.name += stochastic ? "_stochastic" : "";
  const Shape shape = c.inputs[0].meta.shape;
  c.inputs.insert(c.inputs.begin() + 1, {{DType::kBF16, shape}, 0, 0});
  c.attrs.Set("stochastic", stochastic);
  c.attrs.Set("key", int64_t{11});
  c.relative = stochastic ? 1.0 / 120 : 1.0 / 250;
  c.reference = [plain = c.reference](const RefArgs& r) {
    std::vector<Doubles> in = r.in;
    std::vector<TensorMeta> metas = r.metas, out_metas = r.out_metas;
    in.erase(in.begin() + 1);
    metas.erase(metas.begin() + 1);
    out_metas.erase(out_metas.begin() + 1);
    std::vector<Doubles> results = plain({in, metas, out_metas, r.attrs});
    const Doubles param = results[0];
    results.insert(results.begin() + 1, param);
    return results;
  };
  return c;
}

// More ranges than there are warps, none at a round number.
std::vector<int64_t> ManyRanges() {
  std::vector<int64_t> ranges;
  for (int64_t i = 0; i < 150; ++i) {
    ranges.push_back(60 * i + 7);
    ranges.push_back(60 * i + 37);
  }
  return ranges;
}

OpCase LowCopy(const char* name, int64_t n, bool stochastic) {
  return {.op = "low_copy",
          .name = name,
          .inputs = {F32({n})},
          .attrs = {{"stochastic", stochastic}, {"key", int64_t{11}}},
          .relative = stochastic ? 1.0 / 120 : 1.0 / 250,
          .reference = [](const RefArgs& r) { return std::vector<Doubles>{r.in[0]}; }};
}

OpCase GradNorm(const char* name, int64_t n) {
  return {.op = "grad_norm",
          .name = name,
          .inputs = {F32({n}), Scalar(5)},
          .reference = GradNormReference};
}

}  // namespace

OpCases OptimCases() {
  return {
      Schedule("first", 0, "cosine"),
      Schedule("end_of_rise", 9, "cosine"),
      Schedule("middle", 40, "cosine"),
      Schedule("past_the_end", 200, "cosine"),
      Schedule("constant", 50, "constant"),
      GradNorm("short", 5),
      GradNorm("several_chunks", 13000),
      GradNorm("whole_chunks", 16384),
      Sgd("plain", 37, {}, false),
      Sgd("clamped", 37, {{"clamp", 1.0}}, false),
      Sgd("clipped", 4200, {{"clip_norm", 1.0}}, true),
      Sgd("not_clipped", 4200, {{"clip_norm", 5.0}}, true),
      Adamw("first_step", 37, 0, {}, false),
      Adamw("later_step", 4200, 999, {{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-6}}, false),
      Adamw("decay_ranges", 9000, 3,
            {{"weight_decay", 0.1},
             {"decay_ranges", std::vector<int64_t>{0, 64, 4000, 4200, 8192, 9000}}},
            false),
      Adamw("many_ranges", 9001, 3, {{"weight_decay", 0.1}, {"decay_ranges", ManyRanges()}}, false),
      Adamw("clipped", 37, 3, {{"clip_norm", 1.0}}, true),
      LowCopy("nearest", 4201, false),
      LowCopy("stochastic", 4203, true),
      LowCopy("empty", 0, false),
      Mixed(Sgd("clipped", 4201, {{"clip_norm", 1.0}}, true), false),
      Mixed(Sgd("plain", 37, {}, false), true),
      Mixed(
          Adamw("decay_ranges", 9000, 3,
                {{"weight_decay", 0.1}, {"decay_ranges", std::vector<int64_t>{0, 63, 4000, 4201}}},
                false),
          false),
      Mixed(Adamw("later_step", 4203, 999, {{"beta2", 0.95}}, false), true),
  };
}

}  // namespace weft::testing
