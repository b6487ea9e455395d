// What the products mean.
#include "fabric/opset/grad_helpers.h"
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

// f32 or bf16, all the same.
Status ExpectOneType(const InferArgs& args) {
  RETURN_IF_ERROR(CheckNarrow(args.in[0], "the first operand"));
  return CheckFloats(args.in);
}

StatusOr<std::vector<TensorMeta>> InferMatmul(const InferArgs& args) {
  RETURN_IF_ERROR(ExpectOneType(args));
  const Shape &a = args.in[0].shape, &b = args.in[1].shape;
  if (a.rank() < 2 || b.rank() < 2) return InvalidArgument("operands need two dimensions or more");
  if (b.rank() != 2 && b.rank() != a.rank()) {
    return InvalidArgument("the second operand has two dimensions or as many as the first, ",
                           a.rank());
  }
  for (int i = 0; b.rank() > 2 && i < a.rank() - 2; ++i) {
    if (a.dim(i) != b.dim(i)) return InvalidArgument("leading dimensions differ");
  }
  const bool ta = args.attrs.GetBool("transpose_a"), tb = args.attrs.GetBool("transpose_b");
  const int64_t ka = a.dim(ta ? -2 : -1), kb = b.dim(tb ? -1 : -2);
  if (ka != kb) return InvalidArgument("contracts ", ka, " against ", kb);
  Shape y = a;
  y.set_dim(-2, a.dim(ta ? -1 : -2));
  y.set_dim(-1, b.dim(tb ? -2 : -1));
  return std::vector<TensorMeta>{{args.in[0].dtype, y}};
}

int64_t MatmulFlops(const CostArgs& args) {
  const Shape& a = args.in[0].shape;
  return 2 * args.out[0].elements() * a.dim(args.attrs.GetBool("transpose_a") ? -2 : -1);
}

// `attrs` of a product of the backward pass, which multiplies as the forward one does.
Attrs AsPrecise(const GradArgs& g, Attrs attrs) {
  if (g.attrs.GetBool("tf32")) attrs.Set("tf32", true);
  return attrs;
}

Value Product(const GradArgs& g, const Value& a, const Value& b, bool transpose_a,
              bool transpose_b) {
  const Attrs attrs = {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}};
  return g.e.Emit("matmul", {a, b}, AsPrecise(g, attrs));
}

// With A and B the operands as multiplied: dA = dy B', dB = A' dy.
Values MatmulGrad(const GradArgs& g) {
  const bool ta = g.attrs.GetBool("transpose_a"), tb = g.attrs.GetBool("transpose_b");
  const Value &a = g.in[0], &b = g.in[1], &dy = g.d[0];
  const bool shared_b = b.shape().rank() < a.shape().rank();
  Values d(2);
  if (g.need[0]) {
    if (!ta) {
      d[0] = Product(g, dy, b, false, !tb);
    } else if (!shared_b) {
      d[0] = Product(g, b, dy, tb, true);
    } else {
      const int rank = a.shape().rank();
      d[0] = Transpose(g.e, Product(g, dy, b, false, !tb), rank - 2, rank - 1);
    }
  }
  if (!g.need[1]) return d;
  if (shared_b && !ta) {
    d[1] = g.e.Emit("linear_grad_w", {a, dy}, AsPrecise(g, {{"transpose_w", tb}}));
    return d;
  }
  const Value db = tb ? Product(g, dy, a, true, ta) : Product(g, a, dy, !ta, false);
  d[1] = SumTo(g.e, db, b.shape());
  return d;
}

// Of y = x w.
StatusOr<Shape> ProductShape(const InferArgs& args) {
  RETURN_IF_ERROR(ExpectOneType(args));
  const Shape &x = args.in[0].shape, &w = args.in[1].shape;
  if (x.rank() < 1) return InvalidArgument("x needs a dimension");
  if (w.rank() != 2) return InvalidArgument("w has two dimensions");
  const bool tw = args.attrs.GetBool("transpose_w");
  const int64_t k = w.dim(tw ? 1 : 0), n = w.dim(tw ? 0 : 1);
  if (x.dim(-1) != k) return InvalidArgument("x has ", x.dim(-1), " features, w takes ", k);
  Shape y = x;
  y.set_dim(-1, n);
  return y;
}

StatusOr<Shape> LinearShape(const InferArgs& args) {
  ASSIGN_OR_RETURN(const Shape y, ProductShape(args));
  if (args.in.size() > 2 && args.in[2].shape != Shape{y.dim(-1)}) {
    return InvalidArgument("bias is [", y.dim(-1), "], got ", ToString(args.in[2].shape));
  }
  return y;
}

StatusOr<std::vector<TensorMeta>> InferLinear(const InferArgs& args) {
  ASSIGN_OR_RETURN(const Shape y, LinearShape(args));
  return std::vector<TensorMeta>{{args.in[0].dtype, y}};
}

StatusOr<std::vector<TensorMeta>> InferLinearGelu(const InferArgs& args) {
  ASSIGN_OR_RETURN(const Shape y, LinearShape(args));
  return std::vector<TensorMeta>{{args.in[0].dtype, y}, {args.in[0].dtype, y}};
}

StatusOr<std::vector<TensorMeta>> InferLinearGradGelu(const InferArgs& args) {
  ASSIGN_OR_RETURN(const Shape y, ProductShape(args));
  if (args.in[2].shape != y) {
    return InvalidArgument("h is ", ToString(y), ", got ", ToString(args.in[2].shape));
  }
  return std::vector<TensorMeta>{args.in[2]};
}

StatusOr<std::vector<TensorMeta>> InferLinearGradGeluBias(const InferArgs& args) {
  ASSIGN_OR_RETURN(std::vector<TensorMeta> out, InferLinearGradGelu(args));
  out.push_back({DType::kF32, {out[0].shape.dim(-1)}});
  return out;
}

int64_t LinearFlops(const CostArgs& args) {
  return 2 * args.out[0].elements() * args.in[0].shape.dim(-1);
}

// Gradients of x, w and bias for the gradient `dh` of x w + bias.
Values LinearGradOf(const GradArgs& g, const Value& dh) {
  const bool tw = g.attrs.GetBool("transpose_w");
  Values d(g.in.size());
  if (g.need[0]) {
    d[0] = g.e.Emit("linear", {dh, g.in[1]}, AsPrecise(g, {{"transpose_w", !tw}}));
  }
  if (g.need[1]) {
    d[1] = g.e.Emit("linear_grad_w", {g.in[0], dh}, AsPrecise(g, {{"transpose_w", tw}}));
  }
  if (g.in.size() > 2 && g.need[2]) d[2] = SumTo(g.e, dh, g.in[2].shape());
  return d;
}

Values LinearGrad(const GradArgs& g) { return LinearGradOf(g, g.d[0]); }

Values LinearGeluGrad(const GradArgs& g) {
  Value dh = g.d[1];
  if (g.d[0].valid()) {
    const Value through = g.e.Emit("gelu_grad", {g.out[1], g.d[0]});
    dh = dh.valid() ? Add(g.e, through, dh) : through;
  }
  return LinearGradOf(g, dh);
}

StatusOr<std::vector<TensorMeta>> InferLinearGradW(const InferArgs& args) {
  RETURN_IF_ERROR(ExpectOneType(args));
  const Shape &x = args.in[0].shape, &dy = args.in[1].shape;
  if (x.rank() < 1 || x.rank() != dy.rank()) return InvalidArgument("ranks differ");
  for (int i = 0; i < x.rank() - 1; ++i) {
    if (x.dim(i) != dy.dim(i)) return InvalidArgument("leading dimensions differ");
  }
  const int64_t k = x.dim(-1), n = dy.dim(-1);
  const Shape dw = args.attrs.GetBool("transpose_w") ? Shape{n, k} : Shape{k, n};
  return std::vector<TensorMeta>{{DType::kF32, dw}};
}

int64_t LinearGradWFlops(const CostArgs& args) {
  return 2 * args.in[0].elements() * args.in[1].shape.dim(-1);
}

// With G the gradient of x' dy: dx = dy G', ddy = x G.
Values LinearGradWGrad(const GradArgs& g) {
  const bool tw = g.attrs.GetBool("transpose_w");
  Values d(2);
  const Value dw = CastTo(g.e, g.d[0], g.in[0].dtype());  // dw is f32 beside bf16 operands
  if (g.need[0]) d[0] = g.e.Emit("linear", {g.in[1], dw}, AsPrecise(g, {{"transpose_w", !tw}}));
  if (g.need[1]) d[1] = g.e.Emit("linear", {g.in[0], dw}, AsPrecise(g, {{"transpose_w", tw}}));
  return d;
}

const AttrDef kTransposeW = {"transpose_w", AttrType::kBool, false, "w is stored [N, K]"};
const AttrDef kTf32 = {"tf32", AttrType::kBool, false,
                       "f32 operands may be multiplied in TF32, where a device has it"};

}  // namespace

void AddMatmulOps(OpSet* set) {
  set->Add({.name = "matmul",
            .doc = "y = a b over the last two dimensions; b may be shared by all leading ones",
            .inputs = {"a", "b"},
            .attrs = {{"transpose_a", AttrType::kBool, false, "a is stored [..., K, M]"},
                      {"transpose_b", AttrType::kBool, false, "b is stored [..., N, K]"},
                      kTf32},
            .infer = InferMatmul,
            .grad = MatmulGrad,
            .flops = MatmulFlops,
            .precision = Precision::kNarrow});
  set->Add({.name = "linear",
            .doc = "y = x w + bias",
            .inputs = {"x", "w", "bias"},
            .optional_inputs = 1,
            .attrs = {kTransposeW, kTf32},
            .infer = InferLinear,
            .grad = LinearGrad,
            .labels = ".k,kn,n->.n",
            .flops = LinearFlops,
            .precision = Precision::kNarrow});
  set->Add({.name = "linear_gelu",
            .doc = "h = x w + bias, y = gelu(h) in the tanh form",
            .inputs = {"x", "w", "bias"},
            .optional_inputs = 1,
            .outputs = {"y", "h"},
            .attrs = {kTransposeW, kTf32},
            .infer = InferLinearGelu,
            .grad = LinearGeluGrad,
            .flops = LinearFlops,
            .precision = Precision::kNarrow});
  set->Add({.name = "linear_grad_gelu",
            .doc = "dh = gelu_grad(h, dy w): the gradient that linear gives to the gelu before it",
            .inputs = {"dy", "w", "h"},
            .outputs = {"dh"},
            .attrs = {kTransposeW, kTf32},
            .infer = InferLinearGradGelu,
            .differentiable = false,
            .flops = LinearFlops,
            .precision = Precision::kNarrow});
  set->Add({.name = "linear_grad_gelu_bias",
            .doc = "dh of linear_grad_gelu, and its sum over all leading dimensions",
            .inputs = {"dy", "w", "h"},
            .outputs = {"dh", "dbias"},
            .attrs = {kTransposeW, kTf32},
            .infer = InferLinearGradGeluBias,
            .differentiable = false,
            .flops = LinearFlops,
            .precision = Precision::kNarrow});
  set->Add({.name = "linear_grad_w",
            .doc = "dw = x' dy over all leading dimensions: the weight gradient of linear",
            .inputs = {"x", "dy"},
            .outputs = {"dw"},
            .attrs = {kTransposeW, kTf32},
            .infer = InferLinearGradW,
            .grad = LinearGradWGrad,
            .labels = ".k,.n->kn",
            .flops = LinearGradWFlops,
            .precision = Precision::kNarrow});
}

}  // namespace weft
