// What the normalizations mean.
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

// How one op of the family lays out its operands.
struct Form {
  bool mean = false;  // layer norm: subtracts the mean, may have a bias
  bool add = false;   // normalizes x + r and yields the sum too
  bool sums = false;  // the gradient yields the sums of dx's columns too
};

Shape RowsOf(const Shape& x) { return Shape(x.begin(), x.end() - 1); }

Status ExpectFeatures(const InferArgs& args, size_t index, const char* name, int64_t d) {
  if (args.in[index] == TensorMeta{DType::kF32, {d}}) return absl::OkStatus();
  return InvalidArgument(name, " is f32 [", d, "], got ", ToString(args.in[index]));
}

InferFn InferNorm(Form form) {
  return [form](const InferArgs& args) -> StatusOr<std::vector<TensorMeta>> {
    const TensorMeta& x = args.in[0];
    RETURN_IF_ERROR(CheckNarrow(x, "x"));
    if (x.shape.rank() < 1 || x.shape.dim(-1) == 0) {
      return InvalidArgument("x needs features to normalize over");
    }
    const size_t weight = form.add ? 2 : 1;
    if (form.add && args.in[1] != x) return InvalidArgument("x and r differ");
    RETURN_IF_ERROR(ExpectFeatures(args, weight, "weight", x.shape.dim(-1)));
    if (args.in.size() > weight + 1) {
      RETURN_IF_ERROR(ExpectFeatures(args, weight + 1, "bias", x.shape.dim(-1)));
    }
    std::vector<TensorMeta> out = {x};
    if (form.add) out.push_back(x);
    if (form.mean) out.push_back({DType::kF32, RowsOf(x.shape)});
    out.push_back({DType::kF32, RowsOf(x.shape)});
    return out;
  };
}

InferFn InferNormGrad(Form form) {
  return [form](const InferArgs& args) -> StatusOr<std::vector<TensorMeta>> {
    const TensorMeta& x = args.in[1];
    RETURN_IF_ERROR(CheckNarrow(x, "x"));
    if (x.shape.rank() < 1) return InvalidArgument("x needs features");
    if (args.in[0] != x) return InvalidArgument("dy and x differ");
    RETURN_IF_ERROR(ExpectFeatures(args, 2, "weight", x.shape.dim(-1)));
    const size_t stats = form.mean ? 2 : 1;
    for (size_t i = 3; i < 3 + stats; ++i) {
      const TensorMeta want = {DType::kF32, RowsOf(x.shape)};
      if (args.in[i] != want) {
        return InvalidArgument("mean and rstd are ", ToString(want), ", got ",
                               ToString(args.in[i]));
      }
    }
    if (args.in.size() > 3 + stats && args.in[3 + stats] != x) {
      return InvalidArgument("residual and x differ");
    }
    std::vector<TensorMeta> out = {x, args.in[2]};
    if (form.mean) out.push_back(args.in[2]);
    if (form.sums) out.push_back(args.in[2]);
    return out;
  };
}

GradFn GradOfNorm(Form form) {
  return [form](const GradArgs& g) -> Values {
    const size_t weight = form.add ? 2 : 1;
    const size_t first_stat = form.add ? 2 : 1;  // among the outputs
    Values d(g.in.size());
    for (size_t i = first_stat; i < g.d.size(); ++i) {
      if (g.d[i].valid()) {
        g.e.Fail(InvalidArgument("mean and rstd of a norm have no gradient"));
        return d;
      }
    }
    const Value residual = form.add ? g.d[1] : Value();
    if (!g.d[0].valid()) {
      d[0] = d[1] = residual;
      return d;
    }
    Values in = {g.d[0], form.add ? g.out[1] : g.in[0], g.in[weight]};
    in.insert(in.end(), g.out.begin() + first_stat, g.out.end());
    if (residual.valid()) in.push_back(residual);
    const Values grads = g.e.EmitAll(form.mean ? "layer_norm_grad" : "rms_norm_grad", in, {});
    d[0] = grads[0];
    if (form.add) d[1] = grads[0];
    d[weight] = grads[1];
    if (form.mean && g.in.size() > weight + 1) d[weight + 1] = grads[2];
    return d;
  };
}

CostFn FlopsAnElement(int64_t flops) {
  return [flops](const CostArgs& args) { return flops * args.out[0].elements(); };
}

const AttrDef kEps = {"eps", AttrType::kFloat, false, "added to the variance; 1e-5 when absent"};

void AddNorm(OpSet* set, const char* name, const char* doc, Form form) {
  OpDef op;
  op.name = name;
  op.doc = doc;
  op.inputs = {"x"};
  op.outputs = {"y"};
  if (form.add) {
    op.inputs.push_back("r");
    op.outputs.push_back("s");
  }
  op.inputs.push_back("weight");
  if (form.mean) {
    op.inputs.push_back("bias");
    op.optional_inputs = 1;
    op.outputs.push_back("mean");
  }
  op.outputs.push_back("rstd");
  op.attrs = {kEps};
  op.infer = InferNorm(form);
  op.grad = GradOfNorm(form);
  op.flops = FlopsAnElement(form.mean ? 8 : 5);
  op.precision = Precision::kNarrow;
  op.full_inputs = {"weight", "bias"};
  set->Add(std::move(op));
}

void AddNormGrad(OpSet* set, const char* name, const char* doc, Form form) {
  OpDef op;
  op.name = name;
  op.doc = doc;
  op.inputs = {"dy", "x", "weight"};
  op.outputs = {"dx", "dweight"};
  op.full_inputs = {"weight", "rstd"};
  if (form.mean) {
    op.inputs.push_back("mean");
    op.outputs.push_back("dbias");
    op.full_inputs.push_back("mean");
  }
  op.inputs.push_back("rstd");
  op.inputs.push_back("residual");
  op.optional_inputs = 1;
  if (form.sums) op.outputs.push_back("sums");
  op.infer = InferNormGrad(form);
  op.differentiable = false;
  op.flops = FlopsAnElement(form.mean ? 14 : 10);
  op.precision = Precision::kFollow;
  set->Add(std::move(op));
}

}  // namespace

void AddNormOps(OpSet* set) {
  AddNorm(set, "rms_norm",
          "y = x rstd weight, rstd = 1 / sqrt(mean of x^2 + eps) (arXiv 1910.07467)",
          {.mean = false, .add = false});
  AddNorm(set, "layer_norm", "y = (x - mean) rstd weight + bias (arXiv 1607.06450)",
          {.mean = true, .add = false});
  AddNorm(set, "add_rms_norm", "s = x + r, y = rms_norm(s)", {.mean = false, .add = true});
  AddNorm(set, "add_layer_norm", "s = x + r, y = layer_norm(s)", {.mean = true, .add = true});
  AddNormGrad(set, "rms_norm_grad",
              "dx (+ residual) and dweight of rms_norm, in one pass over dy and x",
              {.mean = false});
  AddNormGrad(set, "layer_norm_grad",
              "dx (+ residual), dweight and dbias of layer_norm, in one pass over dy and x",
              {.mean = true});
  AddNormGrad(set, "rms_norm_grad_sums",
              "rms_norm_grad and the sum of dx over all leading dimensions, which is the gradient "
              "of a bias that x ends with",
              {.mean = false, .sums = true});
  AddNormGrad(set, "layer_norm_grad_sums", "the same of layer_norm_grad",
              {.mean = true, .sums = true});
}

}  // namespace weft
