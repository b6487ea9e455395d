// Elementary functions over their whole ranges, in units of the last place of FP32; and that an
// element's bits do not depend on where it lies.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/ops/kernel_run.h"
#include "tests/support/seeded.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

struct Row {
  const char* op;
  double (*f)(double);
  double low, high;
  double most;  // units in the last place
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Gelu(double x) { return x * Sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

const Row kRows[] = {
    {"exp", std::exp, -0.5, 0.5, 2},
    {"exp", std::exp, -87, 88.7, 2},
    {"exp", std::exp, -103, -87, 2},
    {"log", std::log, 0.5, 2, 2},
    {"log", std::log, 1e-37, 1e-3, 2},
    {"log", std::log, 2, 3e38, 2},
    {"log", std::log, 1e-44, 1e-38, 2},
    {"tanh", std::tanh, -1e-3, 1e-3, 3},
    {"tanh", std::tanh, -1, 1, 3},
    {"tanh", std::tanh, -12, 12, 3},
    {"sigmoid", Sigmoid, -1, 1, 3},
    {"sigmoid", Sigmoid, -80, 30, 3},
    {"gelu", Gelu, -1, 1, 4},
    {"gelu", Gelu, -3, 20, 16},
    {"rsqrt", [](double x) { return 1 / std::sqrt(x); }, 1e-30, 1e30, 2},
};

std::vector<HostArray> RunUnary(const char* op, ArrayRef x) {
  static const auto* const tiles = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  StatusOr<std::vector<HostArray>> out =
      RunKernel(*BuiltinOpSet().Find(op), {x}, {}, {"", tiles->get(), {}});
  EXPECT_TRUE(out.ok()) << out.status();
  return *std::move(out);
}

// The distance from x to the next float away from zero.
double UnitOf(double x) {
  const float size = std::abs(static_cast<float>(x));
  return static_cast<double>(std::nextafter(size, std::numeric_limits<float>::infinity())) - size;
}

TEST(Accuracy, WholeRanges_WithinUnits) {
  constexpr int64_t kCount = 20000;
  for (const Row& row : kRows) {
    SeededStream stream(3);
    Doubles elements;
    for (int64_t i = 0; i < kCount; ++i) elements.push_back(stream.Uniform(row.low, row.high));
    HostArray x({DType::kF32, {kCount}}, elements);
    const Doubles in = x.ToDoubles(), got = RunUnary(row.op, x.ref())[0].ToDoubles();
    double worst = 0, at = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double want = row.f(in[i]);
      const double off = std::abs(got[i] - want) / UnitOf(want);
      if (!(off <= worst)) worst = off, at = in[i];
    }
    EXPECT_LE(worst, row.most) << row.op << " on [" << row.low << ", " << row.high << "], worst at "
                               << at;
  }
}

TEST(Accuracy, ElementMoved_SameBits) {
  constexpr int64_t kCount = 67;
  for (const char* op : {"exp", "log", "tanh", "sigmoid", "gelu", "sqrt", "rsqrt"}) {
    SeededStream stream(4);
    Doubles elements;
    for (int64_t i = 0; i < kCount; ++i) elements.push_back(stream.Uniform(0.1, 5));
    HostArray x({DType::kF32, {kCount}}, elements);
    const Doubles whole = RunUnary(op, x.ref())[0].ToDoubles();
    for (int64_t begin = 1; begin < kCount; ++begin) {
      const Doubles tail = RunUnary(op, x.Rows(begin, kCount))[0].ToDoubles();
      ASSERT_EQ(tail, Doubles(whole.begin() + begin, whole.end())) << op << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace weft::testing
