// The optimizers that keep a bf16 copy: what they do beside the copy is what the others do, and the
// copy's bits are those of the definition.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/ops/case_data.h"
#include "tests/ops/kernel_run.h"
#include "tests/ops/rounded_copy.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

constexpr StepState kStep = {.seed = 11, .step = 4};
constexpr int64_t kKey = 9;

std::vector<Doubles> RunOp(const std::string& op, const std::vector<OpInput>& inputs,
                           const Attrs& attrs) {
  static const auto* const tiles = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  const OpCase c = {.op = op, .name = "", .inputs = inputs, .attrs = attrs};
  std::vector<HostArray> arrays = MakeInputs(c, DrawInputs(c));
  std::vector<ArrayRef> in;
  for (HostArray& array : arrays) in.push_back(array.ref());
  const StatusOr<std::vector<HostArray>> out =
      RunKernel(*BuiltinOpSet().Find(op), in, attrs, {"", tiles->get(), kStep});
  EXPECT_TRUE(out.ok()) << out.status();
  std::vector<Doubles> results;
  for (const HostArray& array : *out) results.push_back(array.ToDoubles());
  return results;
}

OpInput Scalar(double value) { return {{DType::kF32, {}}, 0, 1, {value}}; }

// Operands of an optimizer over n elements, without the copy. Drawn, so that another operand before
// one does not change what that one holds.
std::vector<OpInput> InputsOf(const std::string& op, int64_t n) {
  OpCase c = {
      .op = op, .name = "", .inputs = {F32({n}), F32({n}, -30, 30), Scalar(7), Scalar(0.25)}};
  if (op == "adamw") {
    c.inputs.insert(c.inputs.begin() + 1, {F32({n}), F32({n}, 0.01, 1)});
    c.inputs.push_back({{DType::kI64, {}}, 0, 1, {3}});
  }
  const std::vector<Doubles> elements = DrawInputs(c);
  for (size_t k = 0; k < elements.size(); ++k) c.inputs[k].values = elements[k];
  return c.inputs;
}

TEST(MixedOptimizers, AnyElement_PlainResultsAndTheirRoundedCopy) {
  for (const std::string op : {"sgd", "adamw"}) {
    for (const bool stochastic : {false, true}) {
      for (const int64_t n : {1, 4097, 9002}) {
        SCOPED_TRACE(op + (stochastic ? " stochastic " : " nearest ") + std::to_string(n));
        std::vector<OpInput> inputs = InputsOf(op, n);
        const std::vector<Doubles> want = RunOp(op, inputs, {});
        inputs.insert(inputs.begin() + 1, {{DType::kBF16, {n}}, 0, 0});
        std::vector<Doubles> got =
            RunOp(op + "_mixed", inputs, {{"stochastic", stochastic}, {"key", kKey}});
        const Doubles low = got[1];
        got.erase(got.begin() + 1);
        ASSERT_EQ(got, want);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(low[i], RoundedCopy(want[0][i], stochastic, kStep, kKey, i)) << i;
        }
      }
    }
  }
}

TEST(MixedOptimizers, InfinityAndNan_StayWhatTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const bool stochastic : {false, true}) {
    const TensorMeta three = {DType::kF32, {3}};
    const std::vector<Doubles> got = RunOp("sgd_mixed",
                                           {{three, 0, 0, {kInfinity, -kInfinity, NAN}},
                                            {{DType::kBF16, {3}}, 0, 0},
                                            {three, 0, 0, {0, 0, 0}},
                                            Scalar(1),
                                            Scalar(1)},
                                           {{"stochastic", stochastic}, {"key", kKey}});
    EXPECT_EQ(got[1][0], kInfinity);
    EXPECT_EQ(got[1][1], -kInfinity);
    EXPECT_TRUE(std::isnan(got[1][2]));
  }
}

}  // namespace
}  // namespace weft::testing
