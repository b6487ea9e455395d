// Gradient rules, run through the eager emitter over the CPU kernels, against central differences
// of each row's reference.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gtest/gtest.h>

#include "fabric/opset/grad_helpers.h"
#include "tests/ops/case_data.h"
#include "tests/support/seeded.h"
#include "worker/core/autograd/backward.h"
#include "worker/core/autograd/tape.h"
#include "worker/core/device/cpu_device.h"
#include "worker/core/dispatch/eager.h"

namespace weft::testing {
namespace {

constexpr double kStep = 1e-5;
// Elements of one input that are checked: few where the reference takes long, and none at the
// largest rows, whose op has smaller ones.
constexpr int64_t kMostChecked = 24;
constexpr int64_t kLeastChecked = 3;
constexpr int64_t kWorkOfInput = 20'000'000;
constexpr int64_t kMostWork = 100'000'000;

// About how many operations one run of the reference takes.
int64_t WorkOf(const OpDef& op, const OpCase& c) {
  const std::vector<TensorMeta> metas = MetasOf(c);
  const StatusOr<std::vector<TensorMeta>> out = InferOp(op, metas, c.attrs);
  if (!out.ok()) return 0;  // the row's own test says so
  int64_t work = FlopsOf(op, metas, *out, c.attrs);
  for (const TensorMeta& meta : metas) work += 50 * meta.elements();
  for (const TensorMeta& meta : *out) work += 50 * meta.elements();
  return work;
}

std::unique_ptr<EagerEmitter> MakeEmitter() {
  static const auto* const tiles = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  DispatchContext context;
  context.ops = &BuiltinOpSet();
  context.kernels = &BuiltinKernels();
  context.allocator = TestAllocator().shared_from_this();
  context.tiles = tiles->get();
  return std::make_unique<EagerEmitter>(std::move(context));
}

Tensor ToTensor(EagerEmitter& e, const TensorMeta& meta, const Doubles& x) {
  if (meta.dtype == DType::kI32)
    return e.Make(meta.shape, std::vector<int32_t>(x.begin(), x.end()));
  if (meta.dtype == DType::kI64)
    return e.Make(meta.shape, std::vector<int64_t>(x.begin(), x.end()));
  return e.Make(meta.shape, std::vector<float>(x.begin(), x.end()));
}

// Whether gradients of this row can be compared.
bool Comparable(const OpDef& op, const OpCase& c) {
  if (!op.differentiable || !c.smooth || c.reference == nullptr) return false;
  if (WorkOf(op, c) > kMostWork) return false;
  return std::any_of(c.inputs.begin(), c.inputs.end(), [](const OpInput& input) {
    return input.check_grad && input.meta.dtype == DType::kF32 && input.meta.elements() > 0;
  });
}

std::vector<size_t> ComparableRows() {
  std::vector<size_t> rows;
  for (size_t i = 0; i < AllCases().size(); ++i) {
    const OpDef* op = BuiltinOpSet().Find(AllCases()[i].op);
    if (op != nullptr && Comparable(*op, AllCases()[i])) rows.push_back(i);
  }
  return rows;
}

class GradientSweep : public ::testing::TestWithParam<size_t> {};

// One run of a row: its operands as tensors, the leaves among them, its results.
struct Recorded {
  std::unique_ptr<EagerEmitter> e = MakeEmitter();
  std::vector<Tensor> leaves;
  std::vector<size_t> leaf_inputs;
  Values out;
};

void Record(const OpCase& c, const std::vector<Doubles>& in, Recorded* r) {
  Values values;
  for (size_t k = 0; k < in.size(); ++k) {
    const Tensor tensor = ToTensor(*r->e, c.inputs[k].meta, in[k]);
    ASSERT_TRUE(tensor.valid()) << r->e->status();
    values.push_back(tensor);
    if (!c.inputs[k].check_grad || c.inputs[k].meta.dtype != DType::kF32) continue;
    ASSERT_TRUE(RequireGrad(tensor).ok());
    r->leaves.push_back(tensor);
    r->leaf_inputs.push_back(k);
  }
  r->out = r->e->EmitAll(c.op, values, c.attrs);
  ASSERT_TRUE(r->e->status().ok()) << r->e->status();
}

// Compares `got`, the gradient of input `k` of result `result` weighted by `weights` and summed.
void ExpectGradient(const OpCase& c, std::vector<Doubles> in, size_t k,
                    const std::vector<float>& got, const std::vector<TensorMeta>& out_metas,
                    size_t result, const std::vector<float>& weights) {
  const auto loss = [&] {
    const Doubles y = c.reference({in, MetasOf(c), out_metas, c.attrs})[result];
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
    return sum;
  };
  const int64_t count = c.inputs[k].meta.elements();
  const int64_t work = 1 + WorkOf(*BuiltinOpSet().Find(c.op), c);
  const int64_t checked = std::clamp(kWorkOfInput / work, kLeastChecked, kMostChecked);
  const int64_t stride = std::max<int64_t>(1, (count + checked - 1) / checked);
  double most = 1;
  for (float g : got) most = std::max(most, std::abs(static_cast<double>(g)));
  for (int64_t i = 0; i < count; i += stride) {
    const double x = in[k][i];
    in[k][i] = x + kStep;
    const double above = loss();
    in[k][i] = x - kStep;
    const double below = loss();
    in[k][i] = x;
    const double want = (above - below) / (2 * kStep);
    ASSERT_NEAR(got[i], want, c.grad_tolerance * most)
        << "result " << result << ", input " << k << ", element " << i;
  }
}

// Compares the gradients of one result. False when the op's rule says that this result has none.
bool CompareResult(const OpCase& c, const std::vector<Doubles>& in, size_t result) {
  Recorded r;
  Record(c, in, &r);
  if (::testing::Test::HasFatalFailure()) return true;
  std::vector<TensorMeta> out_metas;
  for (const Value& v : r.out) out_metas.push_back(v.meta());
  const Value y = r.out[result];
  if (y.dtype() != DType::kF32 || !Tracked(Tensor::From(y))) return false;
  const std::vector<float> weights = SeededFloats(90 + result, y.meta().elements());
  const Value loss = r.e->Emit("sum", {Mul(*r.e, y, r.e->Make(y.shape(), weights))});
  const StatusOr<std::vector<Tensor>> grads = Gradients(*r.e, Tensor::From(loss), r.leaves);
  if (!grads.ok()) {
    EXPECT_TRUE(absl::StrContains(grads.status().message(), "no gradient")) << grads.status();
    return false;
  }
  for (size_t k = 0; k < r.leaves.size(); ++k) {
    std::vector<float> got(r.leaves[k].meta().elements());
    if (grads->at(k).valid()) {
      EXPECT_EQ(grads->at(k).meta(), r.leaves[k].meta());
      const StatusOr<std::vector<float>> whole = ToVector<float>(r.e->Emit("copy", {grads->at(k)}));
      EXPECT_TRUE(whole.ok()) << whole.status();
      if (whole.ok()) got = *whole;
    }
    ExpectGradient(c, in, r.leaf_inputs[k], got, out_metas, result, weights);
  }
  return true;
}

TEST_P(GradientSweep, Rule_CentralDifferences_Agree) {
  const OpCase& c = AllCases()[GetParam()];
  const size_t results = BuiltinOpSet().Find(c.op)->outputs.size();
  int compared = 0;
  for (size_t k = 0; k < results; ++k) {
    compared += CompareResult(c, DrawInputs(c), k);
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 0) << "no result has a gradient";
}

INSTANTIATE_TEST_SUITE_P(Ops, GradientSweep, ::testing::ValuesIn(ComparableRows()),
                         [](const auto& info) { return NameOf(AllCases()[info.param]); });

TEST(MaximumGradient, Ties_GoToTheFirst) {
  const std::unique_ptr<EagerEmitter> e = MakeEmitter();
  const Tensor a = e->Make(Shape{3}, std::vector<float>{1, 2, 5});
  const Tensor b = e->Make(Shape{3}, std::vector<float>{1, 3, 4});
  ASSERT_TRUE(RequireGrad(a).ok() && RequireGrad(b).ok());
  const Value loss = e->Emit("sum", {e->Emit("maximum", {a, b})});
  ASSERT_TRUE(Backward(*e, Tensor::From(loss)).ok());
  EXPECT_EQ(*ToVector<float>(GradOf(a)), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(*ToVector<float>(GradOf(b)), (std::vector<float>{0, 1, 0}));
}

TEST(MaxGradient, Ties_ShareEvenly) {
  const std::unique_ptr<EagerEmitter> e = MakeEmitter();
  const Tensor x = e->Make(Shape{4}, std::vector<float>{2, 1, 2, 0});
  ASSERT_TRUE(RequireGrad(x).ok());
  ASSERT_TRUE(Backward(*e, Tensor::From(e->Emit("max", {x}))).ok());
  EXPECT_EQ(*ToVector<float>(GradOf(x)), (std::vector<float>{0.5, 0, 0.5, 0}));
}

TEST(DropoutGradient, SameKey_DropsTheSameElements) {
  const std::unique_ptr<EagerEmitter> e = MakeEmitter();
  const Tensor x = e->Make(Shape{4, 25}, std::vector<float>(100, 1.0f));
  ASSERT_TRUE(RequireGrad(x).ok());
  const Value y = e->Emit("dropout", {x}, {{"p", 0.5}});
  ASSERT_TRUE(Backward(*e, Tensor::From(e->Emit("sum", {y}))).ok());
  EXPECT_EQ(*ToVector<float>(GradOf(x)), *ToVector<float>(y));
}

}  // namespace
}  // namespace weft::testing
