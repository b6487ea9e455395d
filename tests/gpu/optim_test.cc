// The bf16 copy that optimizers keep, on the GPU: the bits that the definition gives the parameters
// beside it.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/device_call.h"
#include "tests/ops/case_data.h"
#include "tests/ops/rounded_copy.h"

namespace weft::testing {
namespace {

std::vector<Doubles> RunOp(const OpCase& c, const std::vector<Doubles>& elements,
                           const StepState& step) {
  std::vector<HostArray> inputs = MakeInputs(c, elements);
  std::vector<ArrayRef> in;
  for (HostArray& input : inputs) in.push_back(input.ref());
  StatusOr<std::unique_ptr<DeviceCall>> call =
      DeviceCall::Make(*BuiltinOpSet().Find(c.op), in, c.attrs, "default");
  EXPECT_TRUE(call.ok()) << call.status();
  if (!call.ok()) return {};
  EXPECT_TRUE((*call)->Launch(step, DeviceCall::How::kEager).ok());
  StatusOr<std::vector<HostArray>> arrays = (*call)->Results();
  EXPECT_TRUE(arrays.ok()) << arrays.status();
  if (!arrays.ok()) return {};
  std::vector<Doubles> results;
  for (const HostArray& array : *arrays) results.push_back(array.ToDoubles());
  return results;
}

// Elements [begin, end) of the flat operands; scalars as they are.
OpCase Piece(OpCase c, std::vector<Doubles>* elements, int64_t begin, int64_t end) {
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    if (c.inputs[k].meta.shape.rank() == 0) continue;
    c.inputs[k].meta.shape = {end - begin};
    Doubles& all = (*elements)[k];
    all = Doubles(all.begin() + begin, all.begin() + end);
  }
  return c;
}

TEST(GpuOptimizers, MoreElementsThanBlocksTakeAtOnce_SameBitsInPieces) {
  constexpr int64_t kElements = 2300003, kCut = 1300001;
  const OpInput count = {{DType::kF32, {}}, 0, 1, {7}}, lr = {{DType::kF32, {}}, 0, 1, {0.01}};
  const OpCase c = {.op = "adamw",
                    .name = "",
                    .inputs = {F32({kElements}),
                               F32({kElements}),
                               F32({kElements}, 0.01, 1),
                               F32({kElements}, -30, 30),
                               count,
                               lr,
                               {{DType::kI64, {}}, 0, 1, {3}}}};
  const std::vector<Doubles> elements = DrawInputs(c);
  std::vector<Doubles> first = elements, second = elements;
  const OpCase a = Piece(c, &first, 0, kCut), b = Piece(c, &second, kCut, kElements);
  const std::vector<Doubles> whole = RunOp(c, elements, {}), begin = RunOp(a, first, {}),
                             end = RunOp(b, second, {});
  ASSERT_EQ(whole.size(), 3u);
  for (size_t k = 0; k < whole.size(); ++k) {
    Doubles joined = begin.at(k);
    joined.insert(joined.end(), end.at(k).begin(), end.at(k).end());
    EXPECT_TRUE(joined == whole[k]) << "result " << k;
  }
}

TEST(GpuMixedOptimizers, EachRow_CopyIsTheRoundedParameter) {
  constexpr StepState kStep = {.seed = 11, .step = 4};
  int rows = 0;
  for (const OpCase& c : AllCases()) {
    if (c.op != "sgd_mixed" && c.op != "adamw_mixed") continue;
    SCOPED_TRACE(NameOf(c));
    ++rows;
    const std::vector<Doubles> results = RunOp(c, DrawInputs(c), kStep);
    ASSERT_GE(results.size(), 2u);
    const Doubles &param = results[0], &low = results[1];
    const auto key = static_cast<uint64_t>(c.attrs.GetInt("key"));
    for (size_t i = 0; i < param.size(); ++i) {
      ASSERT_EQ(low[i], RoundedCopy(param[i], c.attrs.GetBool("stochastic"), kStep, key,
                                    static_cast<int64_t>(i)))
          << i;
    }
  }
  EXPECT_GT(rows, 0);
}

}  // namespace
}  // namespace weft::testing
