// The tape and backward, over the tiny ops.
#include <functional>

#include <gtest/gtest.h>

#include "fabric/opset/grad_helpers.h"
#include "tests/support/seeded.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_ops.h"
#include "worker/core/autograd/backward.h"
#include "worker/core/autograd/save_plan.h"
#include "worker/core/autograd/tape.h"

namespace weft {
namespace {

using testing::IsStatus;
using testing::MakeTinyEmitter;
using testing::TensorOf;
using testing::TinyOpSet;
using Code = absl::StatusCode;
using Floats = std::vector<float>;

class TapeTest : public ::testing::Test {
 protected:
  Tensor Leaf(const Shape& shape, const Floats& elements) {
    const Tensor leaf = TensorOf(shape, elements);
    EXPECT_OK(RequireGrad(leaf));
    return leaf;
  }
  Tensor Sum(const Value& v) { return e_->Run("sum", {v}); }
  Floats Read(const Value& v) {
    const StatusOr<Floats> elements = ToVector<float>(v);
    EXPECT_OK(e_->status());
    EXPECT_OK(elements);
    return elements.ok() ? *elements : Floats();
  }
  Floats GradAfter(const Tensor& loss, const Tensor& leaf) {
    EXPECT_OK(Backward(*e_, loss));
    return Read(GradOf(leaf));
  }
  std::unique_ptr<EagerEmitter> e_ = MakeTinyEmitter();
};

TEST_F(TapeTest, Rules_AgainstAnalyticGradients) {
  const struct {
    const char* op;
    Floats x, gradient;  // of the sum of the op's result
  } kRows[] = {
      {"neg", {1, -2}, {-1, -1}},   {"recip", {2, -4}, {-0.25, -0.0625}},
      {"square", {3, -1}, {6, -2}}, {"copy", {1, 2}, {1, 1}},
      {"cube", {2, -3}, {12, 27}},  {"twice", {5, 6}, {2, 2}},
  };
  for (const auto& row : kRows) {
    const Tensor x = Leaf({2}, row.x);
    EXPECT_EQ(GradAfter(Sum(e_->Emit(row.op, {x})), x), row.gradient) << row.op;
  }
}

TEST_F(TapeTest, Product_BothOperands) {
  const Tensor a = Leaf({2}, {2, 3}), b = Leaf({2}, {5, 7});
  ASSERT_OK(Backward(*e_, Sum(Mul(*e_, a, b))));
  EXPECT_EQ(Read(GradOf(a)), (Floats{5, 7}));
  EXPECT_EQ(Read(GradOf(b)), (Floats{2, 3}));
}

TEST_F(TapeTest, SameOperandTwice_GradientsAdd) {
  const Tensor x = Leaf({2}, {3, -4});
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, x, x)), x), (Floats{6, -8}));
}

TEST_F(TapeTest, SharedSubexpression_RunsItsRuleOnce) {
  const Tensor x = Leaf({1}, {2});
  const Value shared = Mul(*e_, x, x);                         // x^2
  const Value y = Mul(*e_, shared, Add(*e_, shared, shared));  // 2 x^4
  EXPECT_EQ(GradAfter(Sum(y), x), (Floats{64}));
}

TEST_F(TapeTest, ManyPathsMeet_SameBitsEveryTime) {
  Floats first;
  for (int run = 0; run < 3; ++run) {
    const Tensor x = Leaf({64}, testing::SeededFloats(1, 64));
    Value y = x;
    for (int i = 0; i < 20; ++i)
      y = Add(*e_, Mul(*e_, y, x), TensorOf({64}, testing::SeededFloats(i, 64)));
    const Floats gradient = GradAfter(Sum(y), x);
    if (run == 0) first = gradient;
    EXPECT_EQ(gradient, first);
  }
}

TEST_F(TapeTest, BackwardAgain_OtherLoss_AddsToLeaf) {
  const Tensor x = Leaf({1}, {3});
  ASSERT_OK(Backward(*e_, Sum(Mul(*e_, x, x))));
  EXPECT_EQ(GradAfter(Sum(Neg(*e_, x)), x), (Floats{5}));
  ClearGrad(x);
  EXPECT_FALSE(GradOf(x).valid());
}

TEST_F(TapeTest, Views_PassGradientsThrough) {
  const Tensor x = Leaf({3, 2}, {1, 2, 3, 4, 5, 6});
  const Value row = e_->Emit("take", {x}, {{"begin", int64_t{1}}, {"end", int64_t{2}}});
  const Value flat = Reshape(*e_, e_->Emit("transpose", {x}), {6});
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, flat, TensorOf({6}, {1, 2, 3, 4, 5, 6}))), x),
            (Floats{1, 4, 2, 5, 3, 6}));
  ClearGrad(x);
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, row, row)), x), (Floats{0, 0, 6, 8, 0, 0}));
}

TEST_F(TapeTest, Spread_SumsGradient) {
  const Tensor s = Leaf({}, {3});
  const Value wide = e_->Emit("spread", {s}, {{"shape", std::vector<int64_t>{4}}});
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, wide, TensorOf({4}, {1, 2, 3, 4}))), s), (Floats{10}));
}

TEST_F(TapeTest, ManyResults_EachWay) {
  const Tensor x = Leaf({1}, {3});
  const auto split = [&] { return e_->EmitAll("split2", {x}, {}); };
  EXPECT_EQ(GradAfter(Sum(split()[0]), x), (Floats{1}));
  ClearGrad(x);
  EXPECT_EQ(GradAfter(Sum(split()[1]), x), (Floats{6}));
  ClearGrad(x);
  const Values both = split();
  EXPECT_EQ(GradAfter(Sum(Add(*e_, both[0], both[1])), x), (Floats{7}));
}

TEST_F(TapeTest, NotDifferentiable_StopsGradient) {
  const Tensor x = Leaf({2}, {3, -4});
  const Tensor positive = e_->Run("is_positive", {x});
  EXPECT_FALSE(Tracked(positive));
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, positive, x)), x), (Floats{1, 0}));
}

TEST_F(TapeTest, NoGradScope_RecordsNothing) {
  const Tensor x = Leaf({1}, {3});
  {
    NoGradScope no_grad;
    EXPECT_FALSE(Tracked(Tensor::From(Mul(*e_, x, x))));
    GradModeScope again(true);
    EXPECT_TRUE(Tracked(Tensor::From(Mul(*e_, x, x))));
  }
  EXPECT_TRUE(Tracked(Tensor::From(Mul(*e_, x, x))));
  EXPECT_FALSE(Tracked(x.Detached()));
}

TEST_F(TapeTest, Detached_CutsThePath) {
  const Tensor x = Leaf({1}, {3});
  const Tensor y = Tensor::From(Mul(*e_, x, x));
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, y.Detached(), x)), x), (Floats{9}));
}

TEST_F(TapeTest, DeepChain_NoRecursion) {
  constexpr int kDepth = 100'000;
  const Tensor x = Leaf({1}, {1});
  Value y = x;
  for (int i = 0; i < kDepth; ++i) y = Neg(*e_, y);
  EXPECT_EQ(GradAfter(Sum(y), x), (Floats{1}));
  y = Value();  // destroys the chain
  Value z = x;
  for (int i = 0; i < kDepth; ++i) z = Mul(*e_, z, x);
  z = Value();  // and one with saved values that nobody went back through
}

TEST_F(TapeTest, Chain_Dropped_FreesItsMemory) {
  const Tensor x = Leaf({1000}, Floats(1000, 1));
  const int64_t before = testing::TestAllocator().stats().live_blocks;
  {
    Value y = x;
    for (int i = 0; i < 10; ++i) y = Mul(*e_, y, x);
    EXPECT_GE(testing::TestAllocator().stats().live_blocks, before + 10);
  }
  EXPECT_EQ(testing::TestAllocator().stats().live_blocks, before);
}

TEST_F(TapeTest, ValuesNotNeeded_ReleasedAtOnce) {
  const Tensor x = Leaf({1000}, Floats(1000, 1));
  const int64_t before = testing::TestAllocator().stats().live_blocks;
  Value y = x;
  for (int i = 0; i < 10; ++i) y = Neg(*e_, y);
  EXPECT_EQ(testing::TestAllocator().stats().live_blocks, before + 1);
}

TEST_F(TapeTest, InPlace_Recorded_GradientRight) {
  const Tensor x = Leaf({1}, {3}), a = TensorOf({1}, {10});
  const Value sum = e_->Emit("add_into", {a, Mul(*e_, x, x)});  // 10 + x^2
  EXPECT_EQ(Read(sum), (Floats{19}));
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, sum, x)), x), (Floats{37}));  // 10 + 3 x^2
}

TEST_F(TapeTest, SavedValueOverwritten_ErrorNamesOpAndVersions) {
  const Tensor x = Leaf({1}, {3}), a = TensorOf({1}, {10});
  const Tensor loss = Sum(Mul(*e_, a, x));
  e_->Emit("descend", {a, a});
  e_->Emit("descend", {a, a});
  EXPECT_THAT(
      Backward(*e_, loss),
      IsStatus(Code::kFailedPrecondition,
               "mul: its gradient needs input 0, f32[1], which has been overwritten in place "
               "(version 0 when recorded, 2 now)"));
  EXPECT_FALSE(GradOf(x).valid());
}

TEST_F(TapeTest, SavedResultOverwritten_Error) {
  const Tensor x = Leaf({1}, {3});
  const Tensor y = e_->Run("recip", {x});
  const Tensor loss = Sum(y);
  e_->Emit("descend", {y, TensorOf({1}, {1})});
  EXPECT_THAT(Backward(*e_, loss),
              IsStatus(Code::kFailedPrecondition, "recip: its gradient needs result 0"));
}

TEST_F(TapeTest, OverwrittenThroughView_Error) {
  const Tensor x = Leaf({2}, {3, 4}), a = TensorOf({2}, {10, 20});
  const Tensor loss = Sum(Mul(*e_, a, x));
  const Value tail = e_->Emit("take", {a}, {{"begin", int64_t{1}}, {"end", int64_t{2}}});
  e_->Emit("descend", {tail, tail});
  EXPECT_THAT(Backward(*e_, loss),
              IsStatus(Code::kFailedPrecondition, "mul: its gradient needs input 0"));
}

TEST_F(TapeTest, OverwrittenValue_NotNeeded_NoError) {
  const Tensor x = Leaf({1}, {3});
  const Tensor y = Tensor::From(Neg(*e_, x));
  const Tensor loss = Sum(y);  // needs neither x nor y
  e_->Emit("descend", {y, y});
  EXPECT_EQ(GradAfter(loss, x), (Floats{-1}));
}

TEST_F(TapeTest, InPlaceOverItsOwnSavedInput_Error) {
  const Tensor x = Leaf({1}, {3}), a = TensorOf({1}, {10});
  const Tensor y = e_->Run("mul_into", {a, x});  // x's gradient is the old a, which is gone
  EXPECT_THAT(Backward(*e_, Sum(y)),
              IsStatus(Code::kFailedPrecondition, "mul_into: its gradient needs input 0"));
}

TEST_F(TapeTest, StaleHandle_AfterRecordedWrite_Refused) {
  const Tensor x = Leaf({1}, {3}), a = TensorOf({1}, {10});
  e_->Emit("add_into", {a, x});
  Neg(*e_, a);  // would compute with the new bytes and lose x's gradient
  EXPECT_THAT(e_->status(),
              IsStatus(Code::kFailedPrecondition,
                       "neg: input 0 has been overwritten in place since (version 0 then, "
                       "1 now)"));
}

TEST_F(TapeTest, StaleResult_Overwritten_Refused) {
  const Tensor x = Leaf({1}, {3});
  const Tensor y = Tensor::From(Neg(*e_, x));
  e_->Emit("descend", {y, TensorOf({1}, {1})});
  Neg(*e_, y);
  EXPECT_THAT(e_->status(),
              IsStatus(Code::kFailedPrecondition, "input 0, a result of neg, has been"));
}

TEST_F(TapeTest, RecordedWriteOntoLeaf_Refused) {
  const Tensor x = Leaf({1}, {3});
  e_->Emit("add_into", {x, TensorOf({1}, {1})});
  EXPECT_THAT(e_->status(), IsStatus(Code::kFailedPrecondition, "add_into: input 0 is a leaf"));
}

TEST_F(TapeTest, OptimizerWritesLeaf_StaysLeaf) {
  const Tensor x = Leaf({1}, {3});
  for (int step = 0; step < 3; ++step) {
    ClearGrad(x);
    ASSERT_OK(Backward(*e_, Sum(x)));
    const Tensor same = e_->Run("descend", {x, GradOf(x)});
    EXPECT_EQ(same.rep(), x.rep());
  }
  EXPECT_EQ(Read(x), (Floats{0}));
  EXPECT_EQ(GradAfter(Sum(Mul(*e_, x, x)), x), (Floats{1}));
}

TEST_F(TapeTest, FullGradientsOfNarrowValues_AreRoundedButForCasts) {
  constexpr float kSeed = 1.001f;  // 1 in bf16, cut off
  const auto cast = [this](const Value& v) {
    return e_->Emit("cast", {v}, {{"dtype", std::string("bf16")}});
  };
  const auto gradient = [&](const std::function<Value(const Value& narrow)>& loss) {
    const Tensor x = Leaf({1}, {3});
    const Tensor y = Tensor::From(loss(cast(x)));
    EXPECT_OK(Backward(*e_, y, {}, TensorOf({}, {kSeed})));
    EXPECT_EQ(GradOf(x).dtype(), DType::kF32);
    return Read(GradOf(x));
  };
  // The sum's rule gives f32 whatever it sums.
  EXPECT_EQ(gradient([&](const Value& v) { return Sum(v); }), (Floats{kSeed}));
  EXPECT_EQ(gradient([&](const Value& v) { return Sum(Neg(*e_, v)); }), (Floats{-1}));
  // Where both arrive they are added in f32.
  EXPECT_EQ(gradient([&](const Value& v) { return Add(*e_, Sum(v), Sum(Neg(*e_, v))); }),
            (Floats{kSeed - 1}));
}

TEST_F(TapeTest, Gradients_OfANarrowValue_HaveItsDtype) {
  const Tensor x = Leaf({1}, {3});
  const Tensor narrow = e_->Run("cast", {x}, {{"dtype", std::string("bf16")}});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> grads, Gradients(*e_, Sum(narrow), {narrow}));
  EXPECT_EQ(grads[0].dtype(), DType::kBF16);
}

TEST_F(TapeTest, BackwardTwice_ErrorUnlessKept) {
  const Tensor x = Leaf({1}, {3});
  const Tensor loss = Sum(Mul(*e_, x, x));
  ASSERT_OK(Backward(*e_, loss, {.keep = true}));
  ASSERT_OK(Backward(*e_, loss));
  EXPECT_EQ(Read(GradOf(x)), (Floats{12}));
  EXPECT_THAT(Backward(*e_, loss),
              IsStatus(Code::kFailedPrecondition, "mul: backward has been through"));
  EXPECT_EQ(Read(GradOf(x)), (Floats{12}));
}

TEST_F(TapeTest, MissingRule_FoundBeforeAnythingRuns) {
  const Tensor x = Leaf({1}, {3}), y = Leaf({1}, {4});
  const Tensor loss = Sum(Add(*e_, y, e_->Emit("no_rule", {Mul(*e_, x, x)})));
  EXPECT_THAT(Backward(*e_, loss), IsStatus(Code::kUnimplemented, "no_rule: has no gradient rule"));
  EXPECT_FALSE(GradOf(y).valid());
  EXPECT_OK(e_->status());
}

TEST_F(TapeTest, RuleOfWrongShape_Internal) {
  const Tensor x = Leaf({2}, {3, 4});
  EXPECT_THAT(Backward(*e_, Sum(e_->Emit("bad_rule", {x}))),
              IsStatus(Code::kInternal,
                       "gradient of bad_rule: input 0 is f32[2] but the rule gives f32[]"));
}

TEST_F(TapeTest, BadLossOrSeed_Error) {
  const Tensor x = Leaf({2}, {3, 4});
  const Tensor y = Tensor::From(Neg(*e_, x));
  EXPECT_THAT(Backward(*e_, y), IsStatus(Code::kInvalidArgument, "the loss is f32[2]"));
  EXPECT_THAT(Backward(*e_, y, {}, TensorOf({1}, {1})),
              IsStatus(Code::kInvalidArgument, "the seed is"));
  EXPECT_THAT(Backward(*e_, TensorOf({}, {1})),
              IsStatus(Code::kFailedPrecondition, "nothing leads back"));
  EXPECT_THAT(Backward(*e_, Tensor()), IsStatus(Code::kFailedPrecondition));
  ASSERT_OK(Backward(*e_, y, {}, TensorOf({2}, {10, 20})));
  EXPECT_EQ(Read(GradOf(x)), (Floats{-10, -20}));
}

TEST_F(TapeTest, Backward_AfterFailedOp_ReportsIt) {
  const Tensor x = Leaf({2}, {3, 4});
  const Tensor loss = Sum(e_->Emit("broken", {x}));
  EXPECT_THAT(Backward(*e_, loss), IsStatus(Code::kInternal, "broken: cpu error 7"));
}

TEST_F(TapeTest, RequireGrad_NotALeaf_Error) {
  const Tensor x = Leaf({2}, {3, 4});
  EXPECT_OK(RequireGrad(x));
  EXPECT_THAT(RequireGrad(Tensor::From(Neg(*e_, x))),
              IsStatus(Code::kFailedPrecondition, "result of neg"));
  EXPECT_THAT(RequireGrad(testing::IdsOf({1}, {1})), IsStatus(Code::kInvalidArgument, "i32[1]"));
  EXPECT_THAT(RequireGrad(Tensor()), IsStatus(Code::kInvalidArgument));
}

TEST_F(TapeTest, Gradients_OfLeafAndResult_LeavesUntouched) {
  const Tensor x = Leaf({1}, {3}), unused = Leaf({1}, {1});
  const Tensor y = Tensor::From(Mul(*e_, x, x));
  const Tensor loss = Sum(Mul(*e_, y, y));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> grads, Gradients(*e_, loss, {x, y, unused}));
  EXPECT_EQ(Read(grads[0]), (Floats{108}));
  EXPECT_EQ(Read(grads[1]), (Floats{18}));
  EXPECT_FALSE(grads[2].valid());
  EXPECT_FALSE(GradOf(x).valid());
}

TEST_F(TapeTest, Gradients_OpBesideTheWay_NeedsNoRule) {
  const Tensor x = Leaf({1}, {3}), other = Leaf({1}, {4});
  const Tensor loss = Sum(Mul(*e_, x, e_->Emit("no_rule", {other})));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> grads, Gradients(*e_, loss, {x}));
  EXPECT_EQ(Read(grads[0]), (Floats{4}));
}

TEST_F(TapeTest, GradientOfGradient_ThirdDerivative) {
  const Tensor x = Leaf({2}, {2, 3});
  Tensor y = Sum(Mul(*e_, Mul(*e_, x, x), Mul(*e_, x, x)));
  const Floats kDerivatives[] = {{32, 108}, {48, 108}, {48, 72}};
  for (const Floats& expected : kDerivatives) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> grads,
                         Gradients(*e_, y, {x}, {.create_graph = true}));
    EXPECT_EQ(Read(grads[0]), expected);
    y = Sum(grads[0]);
  }
}

TEST_F(TapeTest, GradientOfGradient_ThroughResultAndSavedOutput) {
  const Tensor x = Leaf({1}, {2});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> first,
                       Gradients(*e_, Sum(e_->Emit("recip", {x})), {x}, {.create_graph = true}));
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> second, Gradients(*e_, Sum(first[0]), {x}));
  EXPECT_EQ(Read(second[0]), (Floats{0.25}));  // 2 / x^3
}

TEST_F(TapeTest, GradientOfGradient_GradientKernelWithoutRule_ErrorNotZero) {
  const Tensor x = Leaf({1}, {2});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> first,
                       Gradients(*e_, Sum(e_->Emit("square", {x})), {x}, {.create_graph = true}));
  EXPECT_THAT(
      Gradients(*e_, Sum(first[0]), {x}),
      IsStatus(Code::kUnimplemented, "square_grad: has no gradient rule, so there is no second"));
}

TEST(SavePlan, DerivedFromRule) {
  const struct {
    const char* op;
    size_t inputs, outputs;
    std::vector<bool> need, in, out;
  } kRows[] = {
      {"neg", 1, 1, {true}, {false}, {false}},
      {"sum", 1, 1, {true}, {false}, {false}},  // names its input's shape only
      {"mul", 2, 1, {true, true}, {true, true}, {false}},
      {"mul", 2, 1, {true, false}, {false, true}, {false}},
      {"recip", 1, 1, {true}, {false}, {true}},
      {"split2", 1, 2, {true}, {true}, {false, false}},
      {"no_rule", 1, 1, {true}, {false}, {false}},
  };
  for (const auto& row : kRows) {
    const std::vector<TensorMeta> in(row.inputs, TensorMeta{DType::kF32, {4}});
    const std::vector<TensorMeta> out(row.outputs, TensorMeta{DType::kF32, {4}});
    const SavePlan plan =
        DeriveSavePlan(TinyOpSet(), *TinyOpSet().Find(row.op), in, out, {}, row.need);
    EXPECT_EQ(plan.in, row.in) << row.op;
    EXPECT_EQ(plan.out, row.out) << row.op;
  }
}

TEST(SavePlan, RuleRefusesOneResult_OtherResultsDecide) {
  OpDef op = *TinyOpSet().Find("split2");
  op.grad = [](const GradArgs& g) -> Values {
    if (g.d[1].valid()) g.e.Fail(InvalidArgument("the second result has no gradient"));
    return {Mul(g.e, g.d[0], g.out[1])};
  };
  const std::vector<TensorMeta> in = {{DType::kF32, {4}}}, out(2, in[0]);
  EXPECT_EQ(DeriveSavePlan(TinyOpSet(), op, in, out, {}, {true}),
            (SavePlan{{false}, {false, true}}));
}

TEST(SavePlan, RuleFailsOnMetadata_KeepsEverything) {
  OpDef op = *TinyOpSet().Find("neg");
  op.grad = [](const GradArgs& g) -> Values { return {g.e.Emit("no_such_op", {g.d[0]})}; };
  const std::vector<TensorMeta> metas = {{DType::kF32, {4}}};
  EXPECT_EQ(DeriveSavePlan(TinyOpSet(), op, metas, metas, {}, {true}), (SavePlan{{true}, {true}}));
}

}  // namespace
}  // namespace weft
