// Reductions over chosen dimensions, and the functions of a whole last dimension.
#include <string>
#include <utility>
#include <vector>

#include "fabric/opset/grad_helpers.h"
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

// The input's shape with the reduced dimensions as 1, or without them.
StatusOr<Shape> Reduced(const Shape& shape, const Attrs& attrs, bool keep) {
  ASSIGN_OR_RETURN(const std::vector<bool> chosen, CheckAxes(shape, attrs.GetInts("axes")));
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!chosen[i]) {
      out.Append(shape.dim(i));
    } else if (keep) {
      out.Append(1);
    }
  }
  return out;
}

StatusOr<Metas> InferReduce(const InferArgs& a) {
  RETURN_IF_ERROR(CheckFloats(a.in));
  ASSIGN_OR_RETURN(const Shape shape, Reduced(a.in[0].shape, a.attrs, a.attrs.GetBool("keep")));
  return Metas{{a.in[0].dtype, shape}};
}

// Sums of bf16 are kept in f32.
StatusOr<Metas> InferSum(const InferArgs& a) {
  ASSIGN_OR_RETURN(Metas out, InferReduce(a));
  if (out[0].dtype == DType::kBF16) out[0].dtype = DType::kF32;
  return out;
}

// `v`, a value of the result's shape, stretched over the input's.
Value Stretch(const GradArgs& g, const Value& v) {
  const Shape& full = g.in[0].shape();
  const StatusOr<Shape> kept = Reduced(full, g.attrs, true);
  return g.e.Emit("expand", {Reshape(g.e, v, *kept)}, {{"shape", ToInts(full)}});
}

Values MaxGrad(const GradArgs& g) {
  const StatusOr<Shape> kept = Reduced(g.in[0].shape(), g.attrs, true);
  const Value y = Reshape(g.e, g.out[0], *kept);
  const Value below = g.e.Emit("greater", {y, g.in[0]});
  const Value winners = g.e.Emit("shift", {Neg(g.e, below)}, {{"amount", 1.0}});
  const Value count = SumTo(g.e, winners, *kept);
  const Value share = Div(g.e, Reshape(g.e, g.d[0], *kept), count);
  return {Mul(g.e, winners, share)};
}

OpDef Reduction(std::string name, std::string doc, GradFn grad) {
  OpDef op{.name = std::move(name), .doc = std::move(doc), .inputs = {"x"}};
  op.attrs = {{"axes", AttrType::kInts, false, "dimensions to reduce, all when empty"},
              {"keep", AttrType::kBool, false, "keep them with size 1"}};
  op.infer = InferSum;
  op.grad = std::move(grad);
  op.precision = Precision::kFollow;
  op.flops = [](const CostArgs& c) { return c.in[0].elements(); };
  op.strided_inputs = true;
  return op;
}

// Sums over the last dimension, keeping it.
Value RowSum(Emitter& e, const Value& v) {
  return e.Emit("sum", {v}, {{"axes", std::vector<int64_t>{-1}}, {"keep", true}});
}

OpDef RowFunction(std::string name, std::string doc, GradFn grad) {
  OpDef op{.name = std::move(name), .doc = std::move(doc), .inputs = {"x"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckNarrow(a.in[0], "x"));
    if (a.in[0].shape.rank() == 0) return InvalidArgument("x has no last dimension");
    return Metas{a.in[0]};
  };
  op.grad = std::move(grad);
  op.precision = Precision::kFollow;
  op.labels = "._->._";
  op.flops = [](const CostArgs& c) { return 12 * c.in[0].elements(); };
  return op;
}

}  // namespace

void AddReduceOps(OpSet* set) {
  set->Add(Reduction("sum", "y = sum of x over `axes`, in an order that the shape fixes",
                     [](const GradArgs& g) { return Values{Stretch(g, g.d[0])}; }));
  set->Add(Reduction("mean", "y = sum of x over `axes` / their number of elements",
                     [](const GradArgs& g) {
                       const int64_t results = g.out[0].meta().elements();
                       const int64_t each = results == 0 ? 1 : g.in[0].meta().elements() / results;
                       const Value d = Scale(g.e, g.d[0], each == 0 ? 0 : 1.0 / each);
                       return Values{Stretch(g, d)};
                     }));
  OpDef max = Reduction(
      "max",
      "y = greatest of x over `axes`, a NaN if there is one, -inf over nothing; ties share "
      "the gradient evenly",
      MaxGrad);
  max.infer = InferReduce;
  set->Add(std::move(max));

  OpDef argmax = RowFunction(
      "argmax", "y = index of the greatest of the last dimension, the lowest on ties", nullptr);
  argmax.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckNarrow(a.in[0], "x"));
    const Shape& shape = a.in[0].shape;
    if (shape.rank() == 0 || shape.dim(-1) == 0)
      return InvalidArgument("x has no last element to choose");
    return Metas{{DType::kI32, Shape(shape.begin(), shape.end() - 1)}};
  };
  argmax.differentiable = false;
  argmax.labels = "._->.";
  argmax.flops = [](const CostArgs& c) { return c.in[0].elements(); };
  set->Add(std::move(argmax));

  set->Add(RowFunction("softmax", "y = e^(x - max) / sum of e^(x - max), over the last dimension",
                       [](const GradArgs& g) {
                         const Value dot = RowSum(g.e, Mul(g.e, g.d[0], g.out[0]));
                         return Values{Mul(g.e, g.out[0], Sub(g.e, g.d[0], dot))};
                       }));
  set->Add(RowFunction("log_softmax",
                       "y = x - max - ln sum of e^(x - max), over the last dimension",
                       [](const GradArgs& g) {
                         const Value p = g.e.Emit("exp", {g.out[0]});
                         return Values{Sub(g.e, g.d[0], Mul(g.e, p, RowSum(g.e, g.d[0])))};
                       }));
}

}  // namespace weft
