// Test rows of the losses.
#include <cmath>
#include <string>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

struct Loss {
  double sum = 0, count = 0, correct = 0;
  Doubles lse;
};

Loss LossOf(const Doubles& logits, const Doubles& targets, int64_t classes) {
  Loss loss;
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* x = logits.data() + row * classes;
    double sum = 0;
    int64_t best = 0;
    for (int64_t j = 0; j < classes; ++j) {
      sum += std::exp(x[j]);
      if (x[j] > x[best]) best = j;
    }
    loss.lse.push_back(std::log(sum));
    if (targets[row] < 0) continue;
    const auto target = static_cast<int64_t>(targets[row]);
    loss.sum += loss.lse.back() - x[target];
    loss.count += 1;
    loss.correct += best == target ? 1 : 0;
  }
  return loss;
}

Doubles GradOf(const Doubles& logits, const Doubles& targets, const Doubles& lse, int64_t classes,
               double dloss) {
  Doubles d(logits.size());
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    for (int64_t j = 0; j < classes; ++j) {
      const size_t at = row * classes + j;
      d[at] = dloss *
              (std::exp(logits[at] - lse[row]) - (j == static_cast<int64_t>(targets[row]) ? 1 : 0));
    }
  }
  return d;
}

std::vector<Doubles> CrossEntropyReference(const RefArgs& r) {
  const Loss loss = LossOf(r.in[0], r.in[1], r.metas[0].shape.dim(-1));
  return {{loss.sum}, {loss.count}, {loss.correct}, loss.lse};
}

std::vector<Doubles> CrossEntropyGradReference(const RefArgs& r) {
  return {GradOf(r.in[0], r.in[1], r.in[2], r.metas[0].shape.dim(-1), r.in[3][0])};
}

std::vector<Doubles> LinearReference(const RefArgs& r) {
  const bool tw = r.attrs.GetBool("transpose_w");
  const int64_t k = r.metas[0].shape.dim(-1), classes = r.metas[1].shape.dim(tw ? 0 : 1);
  const int64_t rows = r.metas[2].elements();
  const auto w = [&](int64_t i, int64_t j) { return tw ? i + j * k : i * classes + j; };
  Doubles logits(rows * classes), dx(rows * k), dw(k * classes);
  const auto each = [&](const auto& body) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < classes; ++j) body(row * k + i, w(i, j), row * classes + j);
      }
    }
  };
  each([&](int64_t x, int64_t at, int64_t l) { logits[l] += r.in[0][x] * r.in[1][at]; });
  const Loss loss = LossOf(logits, r.in[2], classes);
  const Doubles d = GradOf(logits, r.in[2], loss.lse, classes, 1);
  each([&](int64_t x, int64_t at, int64_t l) {
    dx[x] += d[l] * r.in[1][at];
    dw[at] += d[l] * r.in[0][x];
  });
  return {{loss.sum}, {loss.count}, {loss.correct}, dx, dw};
}

OpCase CrossEntropy(const char* name, Shape rows, int64_t classes) {
  Shape logits = rows;
  logits.Append(classes);
  return {.op = "cross_entropy",
          .name = name,
          .inputs = {F32(logits, -3, 3), I32(rows, -1, classes - 1)},
          .relative = 1e-5,
          .absolute = 1e-5,
          .reference = CrossEntropyReference};
}

OpCase Linear(const char* name, int64_t rows, int64_t k, int64_t classes, bool tw) {
  return {.op = "linear_cross_entropy",
          .name = name,
          .inputs = {F32({rows, k}), F32(tw ? Shape{classes, k} : Shape{k, classes}),
                     I32({rows}, -1, classes - 1)},
          .attrs = {{"transpose_w", tw}},
          .relative = 2e-5,
          .absolute = 1e-4,
          .reference = LinearReference};
}

// Too large to take differences of.
OpCase Large(OpCase c) {
  c.smooth = false;
  return c;
}

}  // namespace

OpCases LossCases() {
  OpCases cases = {
      CrossEntropy("rows", {2, 3}, 5),
      CrossEntropy("one_row", {}, 36),
      CrossEntropy("several_tiles", {133}, 65),
      Linear("rows", 6, 5, 7, false),
      Linear("transposed", 6, 5, 7, true),
      Linear("several_chunks", 520, 9, 36, false),
      Linear("several_blocks", 12, 70, 140, true),
      Large(Linear("blocks_of_weights", 520, 65, 2100, false)),
      Large(Linear("many_rows", 1300, 8, 24, true)),
      CrossEntropy("aligned", {9}, 64),
      Large(CrossEntropy("wide", {5}, 2048)),
      Large(CrossEntropy("wide_not_aligned", {5}, 4101)),
      Large(CrossEntropy("wider", {3}, 16000)),
      Large(CrossEntropy("widest", {2}, 120000)),
  };
  cases.push_back(
      {.op = "cross_entropy",
       .name = "ties_and_extremes",
       .inputs = {{{DType::kF32, {4, 3}}, -1, 1, {1, 1, 0, 1, 1, 0, -80, 80, 0, 300, -300, 298}},
                  {{DType::kI32, {4}}, 0, 2, {0, 1, 1, 2}}},
       .relative = 5e-6,
       .smooth = false,
       .reference = [](const RefArgs&) -> std::vector<Doubles> {
         // Row 0's first of two greatest is the target, row 1's is not.
         const double low = std::log(2 + std::exp(-1.0)), high = 300 + std::log1p(std::exp(-2.0));
         return {{2 * low + high - 298}, {4}, {2}, {1 + low, 1 + low, 80, high}};
       }});
  for (const int64_t classes : {5, 36, 4101, 8192}) {
    cases.push_back({.op = "cross_entropy_grad",
                     .name = "of_" + std::to_string(classes),
                     .inputs = {F32({70, classes}, -3, 3), I32({70}, -1, classes - 1),
                                F32({70}, 3, 4), F32({}, 0.5, 2)},
                     .relative = 1e-5,
                     .reference = CrossEntropyGradReference});
  }
  return cases;
}

}  // namespace weft::testing
