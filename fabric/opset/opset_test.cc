#include "fabric/opset/opset.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include <gtest/gtest.h>

#include "fabric/opset/grad_helpers.h"

namespace weft {
namespace {

OpDef SampleOp() {
  OpDef op;
  op.name = "mix";
  op.inputs = {"a", "b", "c"};
  op.optional_inputs = 1;
  op.attrs = {{"rate", AttrType::kFloat, true, "how much"}, {"count", AttrType::kInt, false, ""}};
  op.infer = [](const InferArgs& a) -> StatusOr<std::vector<TensorMeta>> {
    if (a.in[0] != a.in[1]) return InvalidArgument("operands differ");
    return std::vector<TensorMeta>{a.in[0]};
  };
  return op;
}

const TensorMeta kPair = {DType::kF32, {2}};

TEST(InferOp, GoodCall_Infers) {
  const auto out = InferOp(SampleOp(), {kPair, kPair}, {{"rate", 0.5}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(*out, std::vector<TensorMeta>{kPair});
  EXPECT_TRUE(InferOp(SampleOp(), {kPair, kPair, kPair}, {{"rate", 0.5}}).ok());
}

TEST(InferOp, BadCall_SaysWhatIsWrong) {
  struct Row {
    std::vector<TensorMeta> in;
    Attrs attrs;
    const char* says;
  };
  const Row rows[] = {
      {{kPair}, {{"rate", 0.5}}, "takes 2 to 3 inputs"},
      {{kPair, kPair, kPair, kPair}, {{"rate", 0.5}}, "got 4"},
      {{kPair, kPair}, {}, "attribute 'rate' is missing"},
      {{kPair, kPair}, {{"rate", int64_t{1}}}, "wants float"},
      {{kPair, kPair}, {{"rate", 0.5}, {"cout", int64_t{1}}}, "did you mean 'count'"},
      {{kPair, {DType::kF64, {2}}}, {{"rate", 0.5}}, "mix(f32[2], f64[2]): operands differ"},
  };
  for (const Row& row : rows) {
    const auto out = InferOp(SampleOp(), row.in, row.attrs);
    EXPECT_EQ(out.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(out.status().message(), row.says)) << out.status();
  }
}

TEST(InferOp, HugeResult_Refused) {
  OpDef op = SampleOp();
  op.infer = [](const InferArgs&) -> StatusOr<std::vector<TensorMeta>> {
    return std::vector<TensorMeta>{{DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}};
  };
  EXPECT_FALSE(InferOp(op, {kPair, kPair}, {{"rate", 0.5}}).ok());
}

TEST(FlopsOf, NoCost_IsOneAnElementAndNoneForViews) {
  OpDef op = SampleOp();
  EXPECT_EQ(FlopsOf(op, {kPair, kPair}, {kPair}, {}), 2);
  op.alias = Alias::kReshape;
  EXPECT_EQ(FlopsOf(op, {kPair, kPair}, {kPair}, {}), 0);
  op.flops = [](const CostArgs& c) { return 7 * c.in[0].elements(); };
  EXPECT_EQ(FlopsOf(op, {kPair, kPair}, {kPair}, {}), 14);
}

TEST(OpSet, UnknownName_SuggestsTheNearest) {
  OpSet set;
  set.Add(SampleOp());
  EXPECT_EQ(set.Find("nix"), nullptr);
  ASSERT_TRUE(set.Get("mix").ok());
  const auto missing = set.Get("mx");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(missing.status().message(), "mix")) << missing.status();
}

TEST(OpSetDeathTest, SameNameTwice_EndsTheProcess) {
  OpSet set;
  set.Add(SampleOp());
  EXPECT_DEATH(set.Add(SampleOp()), "opset");
}

TEST(OpSetDigest, AnyVisibleChange_ChangesIt) {
  const auto digest = [](const OpDef& op) {
    OpSet set;
    set.Add(op);
    return set.Digest();
  };
  const std::string base = digest(SampleOp());
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(base, digest(SampleOp()));
  const std::pair<const char*, void (*)(OpDef*)> changes[] = {
      {"inputs", [](OpDef* op) { op->inputs.pop_back(); }},
      {"outputs", [](OpDef* op) { op->outputs.push_back("z"); }},
      {"labels", [](OpDef* op) { op->labels = std::string(1, '*'); }},
      {"attribute type", [](OpDef* op) { op->attrs[1].type = AttrType::kBool; }},
      {"alias", [](OpDef* op) { op->alias = Alias::kInPlace; }},
      {"random", [](OpDef* op) { op->random = true; }}};
  for (const auto& [what, change] : changes) {
    OpDef op = SampleOp();
    change(&op);
    EXPECT_NE(digest(op), base) << what;
  }
  OpDef described = SampleOp();
  described.doc = std::string("other words");
  EXPECT_EQ(digest(described), base);
}

}  // namespace
}  // namespace weft
