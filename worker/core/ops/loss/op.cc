// What the losses mean.
#include "fabric/opset/grad_helpers.h"
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

const TensorMeta kScalar = {DType::kF32, Shape{}};

Status ExpectDType(const TensorMeta& m, DType dtype, const char* name) {
  if (m.dtype == dtype) return absl::OkStatus();
  return InvalidArgument(name, " is ", NameOf(dtype), ", got ", ToString(m));
}

Status ExpectTargets(const TensorMeta& x, const TensorMeta& targets) {
  RETURN_IF_ERROR(ExpectDType(targets, DType::kI32, "targets"));
  if (x.shape.rank() < 1) return InvalidArgument("the first operand needs a dimension");
  const Shape rows(x.shape.begin(), x.shape.end() - 1);
  if (targets.shape == rows) return absl::OkStatus();
  return InvalidArgument("targets are ", ToString(rows), ", got ", ToString(targets.shape));
}

StatusOr<std::vector<TensorMeta>> InferCrossEntropy(const InferArgs& args) {
  RETURN_IF_ERROR(CheckNarrow(args.in[0], "logits"));
  RETURN_IF_ERROR(ExpectTargets(args.in[0], args.in[1]));
  if (args.in[0].shape.dim(-1) == 0) return InvalidArgument("there are no classes");
  return std::vector<TensorMeta>{kScalar, kScalar, kScalar, {DType::kF32, args.in[1].shape}};
}

// count and correct are steps: their derivative is zero where it exists.
Values CrossEntropyGrad(const GradArgs& g) {
  Values d(2);
  if (g.d[3].valid()) {
    g.e.Fail(InvalidArgument("lse of cross_entropy has no gradient"));
    return d;
  }
  if (!g.d[0].valid()) return d;
  d[0] = g.e.Emit("cross_entropy_grad", {g.in[0], g.in[1], g.out[3], g.d[0]});
  return d;
}

StatusOr<std::vector<TensorMeta>> InferCrossEntropyGrad(const InferArgs& args) {
  RETURN_IF_ERROR(CheckNarrow(args.in[0], "logits"));
  RETURN_IF_ERROR(ExpectTargets(args.in[0], args.in[1]));
  if (args.in[2] != TensorMeta{DType::kF32, args.in[1].shape}) {
    return InvalidArgument("lse is f32 in the targets' shape, got ", ToString(args.in[2]));
  }
  if (args.in[3] != kScalar) return InvalidArgument("dloss is a f32 scalar");
  return std::vector<TensorMeta>{args.in[0]};
}

StatusOr<std::vector<TensorMeta>> InferLinearCrossEntropy(const InferArgs& args) {
  const TensorMeta &x = args.in[0], &w = args.in[1];
  RETURN_IF_ERROR(CheckNarrow(x, "x"));
  RETURN_IF_ERROR(ExpectDType(w, x.dtype, "w"));
  RETURN_IF_ERROR(ExpectTargets(x, args.in[2]));
  if (w.shape.rank() != 2) return InvalidArgument("w has two dimensions");
  const bool tw = args.attrs.GetBool("transpose_w");
  if (w.shape.dim(tw ? 1 : 0) != x.shape.dim(-1)) {
    return InvalidArgument("x has ", x.shape.dim(-1), " features, w takes ",
                           w.shape.dim(tw ? 1 : 0));
  }
  if (w.shape.dim(tw ? 0 : 1) == 0) return InvalidArgument("there are no classes");
  return std::vector<TensorMeta>{kScalar, kScalar, kScalar, x, {DType::kF32, w.shape}};
}

Values LinearCrossEntropyGrad(const GradArgs& g) {
  Values d(3);
  if (g.d[3].valid() || g.d[4].valid()) {
    g.e.Fail(InvalidArgument("dx and dw of linear_cross_entropy have no gradient"));
    return d;
  }
  if (!g.d[0].valid()) return d;
  if (g.need[0]) {
    d[0] = g.e.Emit("scale_by", {g.out[3], CastTo(g.e, g.d[0], g.out[3].dtype())});
  }
  if (g.need[1]) d[1] = g.e.Emit("scale_by", {g.out[4], g.d[0]});
  return d;
}

}  // namespace

void AddLossOps(OpSet* set) {
  set->Add({.name = "cross_entropy",
            .doc =
                "sum over rows of lse - logits[target]; a target below 0 is not counted; correct "
                "counts rows whose first largest logit is the target's",
            .inputs = {"logits", "targets"},
            .outputs = {"loss_sum", "count", "correct", "lse"},
            .infer = InferCrossEntropy,
            .grad = CrossEntropyGrad,
            .flops = [](const CostArgs& a) { return 4 * a.in[0].elements(); },
            .precision = Precision::kFollow});
  set->Add({.name = "cross_entropy_grad",
            .doc = "dlogits = (exp(logits - lse) - [target]) dloss, zero in rows not counted",
            .inputs = {"logits", "targets", "lse", "dloss"},
            .outputs = {"dlogits"},
            .infer = InferCrossEntropyGrad,
            .differentiable = false,
            .flops = [](const CostArgs& a) { return 4 * a.in[0].elements(); },
            .precision = Precision::kFollow,
            .full_inputs = {"lse", "dloss"}});
  set->Add(
      {.name = "linear_cross_entropy",
       .doc = "cross_entropy of x w with the gradients of its sum; the logits never exist whole",
       .inputs = {"x", "w", "targets"},
       .outputs = {"loss_sum", "count", "correct", "dx", "dw"},
       .attrs = {{"transpose_w", AttrType::kBool, false, "w is stored [V, K]"},
                 {"tf32", AttrType::kBool, false, "as of linear"}},
       .infer = InferLinearCrossEntropy,
       .grad = LinearCrossEntropyGrad,
       .flops =
           [](const CostArgs& a) {
             const int64_t k = a.in[0].shape.dim(-1);
             return k == 0 ? 0 : 6 * a.in[0].elements() * (a.in[1].elements() / k);
           },
       .precision = Precision::kNarrow});
}

}  // namespace weft
