// Elementwise ops: arithmetic with NumPy broadcasting, functions of one operand, copies.
#include <string>
#include <utility>
#include <vector>

#include "fabric/opset/grad_helpers.h"
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

// All operands broadcast together.
StatusOr<Metas> InferBroadcast(const InferArgs& a) {
  RETURN_IF_ERROR(CheckFloats(a.in));
  Shape shape = a.in[0].shape;
  for (const TensorMeta& meta : a.in) {
    ASSIGN_OR_RETURN(shape, BroadcastShapes(shape, meta.shape));
  }
  return Metas{{a.in[0].dtype, shape}};
}

StatusOr<Metas> InferSame(const InferArgs& a) {
  RETURN_IF_ERROR(CheckFloats(a.in));
  return Metas{a.in[0]};
}

// A zero that broadcasts against `like`.
Value Zero(Emitter& e, const Value& like) {
  return e.Emit(
      "fill", {},
      {{"shape", std::vector<int64_t>{}}, {"value", 0.0}, {"dtype", NameOf(like.dtype())}});
}

Value Where(Emitter& e, const Value& cond, const Value& a, const Value& b) {
  return e.Emit("where", {cond, a, b});
}

// Gradients are always written for both operands; `need` saves the one that nobody asked for.
using OperandRule = Value (*)(const GradArgs&);
GradFn Pairwise(OperandRule first, OperandRule second) {
  return [first, second](const GradArgs& g) {
    Values grads(2);
    if (g.need[0]) grads[0] = SumTo(g.e, first(g), g.in[0].shape());
    if (g.need[1]) grads[1] = SumTo(g.e, second(g), g.in[1].shape());
    return grads;
  };
}

OpDef Binary(std::string name, std::string doc, GradFn grad) {
  OpDef op{.name = std::move(name), .doc = std::move(doc), .inputs = {"a", "b"}};
  op.infer = InferBroadcast;
  op.grad = std::move(grad);
  op.labels = "*";
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

OpDef Unary(std::string name, std::string doc, OperandRule rule, std::vector<AttrDef> attrs = {}) {
  OpDef op{.name = std::move(name), .doc = std::move(doc), .inputs = {"x"}};
  op.attrs = std::move(attrs);
  op.infer = InferSame;
  op.grad = [rule](const GradArgs& g) { return Values{rule(g)}; };
  op.labels = "*";
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

void AddBinaryOps(OpSet* set) {
  set->Add(Binary("add", "y = a + b",
                  Pairwise([](const GradArgs& g) { return g.d[0]; },
                           [](const GradArgs& g) { return g.d[0]; })));
  set->Add(Binary("sub", "y = a - b",
                  Pairwise([](const GradArgs& g) { return g.d[0]; },
                           [](const GradArgs& g) { return Neg(g.e, g.d[0]); })));
  set->Add(Binary("mul", "y = a * b",
                  Pairwise([](const GradArgs& g) { return Mul(g.e, g.d[0], g.in[1]); },
                           [](const GradArgs& g) { return Mul(g.e, g.d[0], g.in[0]); })));
  set->Add(Binary("div", "y = a / b",
                  Pairwise([](const GradArgs& g) { return Div(g.e, g.d[0], g.in[1]); },
                           [](const GradArgs& g) {
                             return Neg(g.e, Div(g.e, Mul(g.e, g.d[0], g.out[0]), g.in[1]));
                           })));
  set->Add(Binary("maximum", "y = max(a, b); a NaN wins, and on ties the gradient goes to a",
                  Pairwise(
                      [](const GradArgs& g) {
                        const Value b_wins = g.e.Emit("greater", {g.in[1], g.in[0]});
                        return Where(g.e, b_wins, Zero(g.e, g.d[0]), g.d[0]);
                      },
                      [](const GradArgs& g) {
                        const Value b_wins = g.e.Emit("greater", {g.in[1], g.in[0]});
                        return Where(g.e, b_wins, g.d[0], Zero(g.e, g.d[0]));
                      })));
  OpDef greater = Binary("greater", "y = 1 where a > b, else 0", nullptr);
  greater.differentiable = false;
  set->Add(std::move(greater));

  OpDef where = Binary("where", "y = a where cond is not 0, else b", [](const GradArgs& g) {
    Values grads(3);
    if (g.need[1]) {
      const Value d = Where(g.e, g.in[0], g.d[0], Zero(g.e, g.d[0]));
      grads[1] = SumTo(g.e, d, g.in[1].shape());
    }
    if (g.need[2]) {
      const Value d = Where(g.e, g.in[0], Zero(g.e, g.d[0]), g.d[0]);
      grads[2] = SumTo(g.e, d, g.in[2].shape());
    }
    return grads;
  });
  where.inputs = {"cond", "a", "b"};
  set->Add(std::move(where));
}

void AddFunctions(OpSet* set) {
  set->Add(Unary("neg", "y = -x", [](const GradArgs& g) { return Neg(g.e, g.d[0]); }));
  set->Add(Unary("exp", "y = e^x", [](const GradArgs& g) { return Mul(g.e, g.d[0], g.out[0]); }));
  set->Add(Unary("log", "y = ln x", [](const GradArgs& g) { return Div(g.e, g.d[0], g.in[0]); }));
  set->Add(Unary("sqrt", "y = x^(1/2)",
                 [](const GradArgs& g) { return Scale(g.e, Div(g.e, g.d[0], g.out[0]), 0.5); }));
  set->Add(Unary("rsqrt", "y = x^(-1/2)", [](const GradArgs& g) {
    const Value cube = Mul(g.e, Mul(g.e, g.out[0], g.out[0]), g.out[0]);
    return Scale(g.e, Mul(g.e, g.d[0], cube), -0.5);
  }));
  set->Add(Unary("tanh", "y = tanh x", [](const GradArgs& g) {
    const Value square = Mul(g.e, g.out[0], g.out[0]);
    return Sub(g.e, g.d[0], Mul(g.e, g.d[0], square));
  }));
  set->Add(Unary("sigmoid", "y = 1 / (1 + e^-x)", [](const GradArgs& g) {
    const Value dy = Mul(g.e, g.d[0], g.out[0]);
    return Sub(g.e, dy, Mul(g.e, dy, g.out[0]));
  }));
  set->Add(Unary("relu", "y = max(x, 0)", [](const GradArgs& g) {
    const Value zero = Zero(g.e, g.d[0]);
    return Where(g.e, g.e.Emit("greater", {g.in[0], zero}), g.d[0], zero);
  }));
  set->Add(Unary("square", "y = x^2",
                 [](const GradArgs& g) { return Scale(g.e, Mul(g.e, g.d[0], g.in[0]), 2); }));

  OpDef gelu =
      Unary("gelu",
            "y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); Hendrycks, Gimpel: \"Gaussian "
            "error linear units\", arXiv 1606.08415",
            [](const GradArgs& g) {
              return g.e.Emit("gelu_grad", {g.in[0], g.d[0]});
            });
  gelu.flops = [](const CostArgs& c) { return 14 * c.in[0].elements(); };
  set->Add(std::move(gelu));

  OpDef gelu_grad = Unary("gelu_grad", "dx of gelu at x for dy", nullptr);
  gelu_grad.inputs = {"x", "dy"};
  gelu_grad.outputs = {"dx"};
  gelu_grad.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckFloats(a.in));
    if (a.in[0].shape != a.in[1].shape) return InvalidArgument("x and dy differ in shape");
    return Metas{a.in[0]};
  };
  gelu_grad.grad = nullptr;
  gelu_grad.differentiable = false;
  gelu_grad.flops = [](const CostArgs& c) { return 20 * c.in[0].elements(); };
  set->Add(std::move(gelu_grad));
}

void AddConstantOps(OpSet* set) {
  set->Add(Unary("scale", "y = x * factor",
                 [](const GradArgs& g) { return Scale(g.e, g.d[0], g.attrs.GetFloat("factor")); },
                 {{"factor", AttrType::kFloat, true, "multiplier"}}));
  set->Add(Unary("shift", "y = x + amount", [](const GradArgs& g) { return g.d[0]; },
                 {{"amount", AttrType::kFloat, true, "summand"}}));
  set->Add(Unary("clamp", "y = min(max(x, min), max); the gradient passes at the limits",
                 [](const GradArgs& g) {
                   const Value zero = Zero(g.e, g.d[0]);
                   const auto limit = [&g, &zero](const char* name) {
                     return g.e.Emit("shift", {zero}, {{"amount", g.attrs.GetFloat(name)}});
                   };
                   const Value above = g.e.Emit("greater", {g.in[0], limit("max")});
                   const Value below = g.e.Emit("greater", {limit("min"), g.in[0]});
                   return Where(g.e, above, zero, Where(g.e, below, zero, g.d[0]));
                 },
                 {{"min", AttrType::kFloat, true, "lower limit"},
                  {"max", AttrType::kFloat, true, "upper limit"}}));

  OpDef scale_by = Unary("scale_by", "y = x * s, s a scalar", nullptr);
  scale_by.inputs = {"x", "s"};
  scale_by.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckFloats(a.in));
    if (a.in[1].shape.rank() != 0) return InvalidArgument("s is not a scalar; use mul");
    return Metas{a.in[0]};
  };
  scale_by.grad = [](const GradArgs& g) {
    Values grads(2);
    if (g.need[0]) grads[0] = g.e.Emit("scale_by", {g.d[0], g.in[1]});
    if (g.need[1]) grads[1] = g.e.Emit("sum", {Mul(g.e, g.d[0], g.in[0])});
    return grads;
  };
  scale_by.labels = "*";
  set->Add(std::move(scale_by));
}

void AddCopies(OpSet* set) {
  OpDef copy = Unary("copy", "y = x, contiguous", [](const GradArgs& g) { return g.d[0]; });
  copy.infer = [](const InferArgs& a) -> StatusOr<Metas> { return Metas{a.in[0]}; };
  copy.flops = [](const CostArgs&) { return int64_t{0}; };
  set->Add(copy);

  OpDef cast = Unary(
      "cast",
      "y = x in another dtype: to nearest, ties to even; float to integer truncates and saturates",
      [](const GradArgs& g) -> Value {
        if (!IsFloat(g.in[0].dtype()) || !IsFloat(g.out[0].dtype())) return {};
        if (g.d[0].dtype() == g.in[0].dtype()) return g.d[0];
        return g.e.Emit("cast", {g.d[0]}, {{"dtype", NameOf(g.in[0].dtype())}});
      },
      {{"dtype", AttrType::kString, true, "the result's dtype"}});
  cast.precision = Precision::kFull;
  cast.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    ASSIGN_OR_RETURN(const DType dtype, CheckedDType(a.attrs.GetString("dtype")));
    return Metas{{dtype, a.in[0].shape}};
  };
  set->Add(std::move(cast));

  OpDef fill{.name = "fill", .doc = "every element is `value`", .inputs = {}};
  fill.attrs = {{"shape", AttrType::kInts, true, "the result's shape"},
                {"value", AttrType::kFloat, true, "of every element"},
                {"dtype", AttrType::kString, false, "the result's dtype, f32 when absent"}};
  fill.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    ASSIGN_OR_RETURN(const DType dtype, CheckedDType(a.attrs.GetString("dtype")));
    ASSIGN_OR_RETURN(const Shape shape, CheckedShape(dtype, a.attrs.GetInts("shape")));
    return Metas{{dtype, shape}};
  };
  fill.differentiable = false;
  fill.flops = [](const CostArgs&) { return int64_t{0}; };
  set->Add(std::move(fill));
}

}  // namespace

void AddElementwiseOps(OpSet* set) {
  AddBinaryOps(set);
  AddFunctions(set);
  AddConstantOps(set);
  AddCopies(set);
}

}  // namespace weft
