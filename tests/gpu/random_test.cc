// Random ops on the GPU against the CPU's: uniform draws and what dropout keeps bit for bit,
// normals to the functions' rounding, wherever the rows lie in the batch.
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/device_call.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

struct Row {
  const char* op;
  Attrs attrs;
  double tolerance;  // 0: bit for bit
};

std::vector<HostArray> OnGpu(const OpDef& op, const std::vector<ArrayRef>& in, const Attrs& attrs,
                             const StepState& step) {
  StatusOr<std::unique_ptr<DeviceCall>> call = DeviceCall::Make(op, in, attrs, "default");
  EXPECT_TRUE(call.ok()) << call.status();
  if (!call.ok()) return {};
  const Status launched = (*call)->Launch(step, DeviceCall::How::kEager);
  EXPECT_TRUE(launched.ok()) << launched;
  StatusOr<std::vector<HostArray>> results = (*call)->Results();
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<HostArray>();
}

// Exact in bf16.
Doubles Ramp(const Shape& shape) {
  Doubles x(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 200) - 99.5;
  return x;
}

// An FP32 number to bf16, to nearest, ties to even.
double Rounded(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

TEST(RandomOps, AnyRows_AreTheCpus) {
  const std::unique_ptr<TileRunner> tiles = MakeThreadPool(1);
  const Row rows[] = {
      {"uniform", {{"low", -1.0}, {"high", 3.0}, {"key", int64_t{77}}}, 0},
      {"dropout", {{"p", 0.25}, {"key", int64_t{78}}}, 0},
      {"normal", {{"std", 0.5}, {"key", int64_t{79}}}, 3e-6},
  };
  for (const Row& row : rows) {
    const OpDef& op = *BuiltinOpSet().Find(row.op);
    for (const Shape& shape : {Shape{3, 37}, Shape{2, 20001}, Shape{7, 64}, Shape{1}}) {
      for (const int64_t first_row : {0, 1, 5}) {
        SCOPED_TRACE(std::string(row.op) + " " + ToString(shape) + " from row " +
                     std::to_string(first_row));
        const StepState step = {.seed = 11, .step = 4, .first_row = first_row};
        Attrs attrs = row.attrs;
        std::vector<HostArray> inputs;
        std::vector<ArrayRef> in;
        if (op.inputs.empty()) {
          attrs.Set("shape", std::vector<int64_t>(shape.begin(), shape.end()));
        } else {
          inputs.emplace_back(TensorMeta{DType::kF32, shape}, Ramp(shape));
          in.push_back(inputs[0].ref());
        }
        const auto want = RunKernel(op, in, attrs, {"", tiles.get(), step});
        ASSERT_TRUE(want.ok()) << want.status();
        const std::vector<HostArray> got = OnGpu(op, in, attrs, step);
        ASSERT_EQ(got.size(), 1u);
        const Doubles a = got[0].ToDoubles(), b = want->at(0).ToDoubles();
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], row.tolerance) << i;
      }
    }
  }
}

TEST(Dropout, Bf16_KeepsTheSameElementsRoundedOnce) {
  const OpDef& op = *BuiltinOpSet().Find("dropout");
  const Attrs attrs = {{"p", 0.25}, {"key", int64_t{78}}};
  for (const Shape& shape : {Shape{3, 37}, Shape{2, 20001}, Shape{7, 64}}) {
    for (const int64_t first_row : {0, 1}) {
      const StepState step = {.seed = 11, .step = 4, .first_row = first_row};
      HostArray wide({DType::kF32, shape}, Ramp(shape));
      HostArray narrow({DType::kBF16, shape}, Ramp(shape));
      const std::vector<HostArray> want = OnGpu(op, {wide.ref()}, attrs, step);
      const std::vector<HostArray> got = OnGpu(op, {narrow.ref()}, attrs, step);
      ASSERT_EQ(got.size(), 1u);
      ASSERT_EQ(want.size(), 1u);
      const Doubles a = got[0].ToDoubles(), b = want[0].ToDoubles();
      for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], Rounded(b[i])) << i;
    }
  }
}

}  // namespace
}  // namespace weft::testing
