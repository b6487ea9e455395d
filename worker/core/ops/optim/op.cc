// What the optimizers mean.
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

const TensorMeta kScalar = {DType::kF32, Shape{}};

Status Expect(const InferArgs& args, size_t index, const TensorMeta& meta, const char* name) {
  if (args.in[index] == meta) return absl::OkStatus();
  return InvalidArgument(name, " is ", ToString(meta), ", got ", ToString(args.in[index]));
}

Status ExpectFlat(const TensorMeta& m, const char* name) {
  if (m.dtype == DType::kF32 && m.shape.rank() == 1) return absl::OkStatus();
  return InvalidArgument(name, " is flat f32, got ", ToString(m));
}

StatusOr<std::vector<TensorMeta>> InferLrSchedule(const InferArgs& args) {
  RETURN_IF_ERROR(Expect(args, 0, {DType::kI64, Shape{}}, "step"));
  const std::string decay = args.attrs.GetString("decay", "constant");
  if (decay != "constant" && decay != "cosine") {
    return InvalidArgument("decay is 'constant' or 'cosine', got '", decay, "'");
  }
  const int64_t warmup = args.attrs.GetInt("warmup"), total = args.attrs.GetInt("total");
  if (warmup < 0 || (decay == "cosine" && total <= warmup)) {
    return InvalidArgument("warmup is 0 or more and total above it, got ", warmup, " and ", total);
  }
  return std::vector<TensorMeta>{kScalar};
}

StatusOr<std::vector<TensorMeta>> InferGradNorm(const InferArgs& args) {
  RETURN_IF_ERROR(ExpectFlat(args.in[0], "grad"));
  RETURN_IF_ERROR(Expect(args, 1, kScalar, "count"));
  return std::vector<TensorMeta>{kScalar};
}

// The bf16 copy beside the parameters, in the ops that keep one.
Status ExpectLow(const InferArgs& args) {
  return Expect(args, 1, {DType::kBF16, args.in[0].shape}, "low");
}

template <bool kLow>
StatusOr<std::vector<TensorMeta>> InferSgd(const InferArgs& args) {
  constexpr size_t kGrad = kLow ? 2 : 1;
  RETURN_IF_ERROR(ExpectFlat(args.in[0], "param"));
  if (kLow) RETURN_IF_ERROR(ExpectLow(args));
  RETURN_IF_ERROR(Expect(args, kGrad, args.in[0], "grad"));
  RETURN_IF_ERROR(Expect(args, kGrad + 1, kScalar, "count"));
  RETURN_IF_ERROR(Expect(args, kGrad + 2, kScalar, "lr"));
  if (args.in.size() > kGrad + 3) RETURN_IF_ERROR(Expect(args, kGrad + 3, kScalar, "norm"));
  if (args.attrs.GetFloat("clip_norm") > 0 && args.in.size() < kGrad + 4) {
    return InvalidArgument("clip_norm needs the norm as an input");
  }
  return std::vector<TensorMeta>(args.in.begin(), args.in.begin() + kGrad);
}

Status CheckRanges(const std::vector<int64_t>& ranges, int64_t n) {
  if (ranges.size() % 2 != 0) return InvalidArgument("decay_ranges holds pairs of begin and end");
  int64_t last = 0;
  for (const int64_t r : ranges) {
    if (r < last || r > n) return InvalidArgument("decay_ranges rise from 0 to ", n, ", got ", r);
    last = r;
  }
  return absl::OkStatus();
}

template <bool kLow>
StatusOr<std::vector<TensorMeta>> InferAdamw(const InferArgs& args) {
  constexpr size_t kM = kLow ? 2 : 1;
  RETURN_IF_ERROR(ExpectFlat(args.in[0], "param"));
  if (kLow) RETURN_IF_ERROR(ExpectLow(args));
  RETURN_IF_ERROR(Expect(args, kM, args.in[0], "m"));
  RETURN_IF_ERROR(Expect(args, kM + 1, args.in[0], "v"));
  RETURN_IF_ERROR(Expect(args, kM + 2, args.in[0], "grad"));
  RETURN_IF_ERROR(Expect(args, kM + 3, kScalar, "count"));
  RETURN_IF_ERROR(Expect(args, kM + 4, kScalar, "lr"));
  RETURN_IF_ERROR(Expect(args, kM + 5, {DType::kI64, Shape{}}, "step"));
  if (args.in.size() > kM + 6) RETURN_IF_ERROR(Expect(args, kM + 6, kScalar, "norm"));
  if (args.attrs.GetFloat("clip_norm") > 0 && args.in.size() < kM + 7) {
    return InvalidArgument("clip_norm needs the norm as an input");
  }
  RETURN_IF_ERROR(CheckRanges(args.attrs.GetInts("decay_ranges"), args.in[0].elements()));
  return std::vector<TensorMeta>(args.in.begin(), args.in.begin() + kM + 2);
}

const AttrDef kStochastic = {"stochastic", AttrType::kBool, false,
                             "low is rounded up with the probability of what is cut off, by a draw "
                             "at (seed, step, key, element)"};
const AttrDef kKey = {"key", AttrType::kInt, false, "which stream of random numbers"};

StatusOr<std::vector<TensorMeta>> InferLowCopy(const InferArgs& args) {
  RETURN_IF_ERROR(ExpectFlat(args.in[0], "param"));
  return std::vector<TensorMeta>{{DType::kBF16, args.in[0].shape}};
}

// `op` that also keeps a bf16 copy of the parameters.
OpDef Mixed(OpDef op, InferFn infer) {
  op.name += "_mixed";
  op.doc += "; low becomes the result in bf16";
  op.inputs.insert(op.inputs.begin() + 1, "low");
  op.outputs.insert(op.outputs.begin() + 1, "low");
  op.attrs.push_back(kStochastic);
  op.attrs.push_back(kKey);
  op.infer = std::move(infer);
  op.random = true;
  ++op.alias_count;
  return op;
}

const AttrDef kClipNorm = {"clip_norm", AttrType::kFloat, false,
                           "largest norm of the gradient; 0: off"};

}  // namespace

void AddOptimOps(OpSet* set) {
  set->Add(
      {.name = "lr_schedule",
       .doc = "the learning rate of a step: linear rise, then constant or half a cosine to min",
       .inputs = {"step"},
       .outputs = {"lr"},
       .attrs = {{"base", AttrType::kFloat, true, "rate after the rise"},
                 {"min", AttrType::kFloat, false, "rate at the end of the cosine"},
                 {"warmup", AttrType::kInt, false, "steps of the rise"},
                 {"total", AttrType::kInt, false, "step at which the cosine ends"},
                 {"decay", AttrType::kString, false, "constant (default) or cosine"}},
       .infer = InferLrSchedule,
       .differentiable = false});
  set->Add({.name = "grad_norm",
            .doc = "Euclidean norm of grad / count, summed over a fixed grid in a fixed tree",
            .inputs = {"grad", "count"},
            .outputs = {"norm"},
            .infer = InferGradNorm,
            .differentiable = false,
            .flops = [](const CostArgs& a) { return 2 * a.in[0].elements(); }});
  OpDef sgd{.name = "sgd",
            .doc = "param -= lr g, where g is grad / count, clamped by element, clipped by norm",
            .inputs = {"param", "grad", "count", "lr", "norm"},
            .optional_inputs = 1,
            .outputs = {"param"},
            .attrs = {{"clamp", AttrType::kFloat, false, "largest magnitude of an element; 0: off"},
                      kClipNorm},
            .infer = InferSgd<false>,
            .differentiable = false,
            .flops = [](const CostArgs& a) { return 3 * a.in[0].elements(); },
            .alias = Alias::kInPlace,
            .alias_count = 1};
  OpDef adamw{
      .name = "adamw",
      .doc = "Adam with decoupled weight decay (arXiv 1711.05101) on grad / count",
      .inputs = {"param", "m", "v", "grad", "count", "lr", "step", "norm"},
      .optional_inputs = 1,
      .outputs = {"param", "m", "v"},
      .attrs = {{"beta1", AttrType::kFloat, false, "decay of m; 0.9 when absent"},
                {"beta2", AttrType::kFloat, false, "decay of v; 0.999 when absent"},
                {"eps", AttrType::kFloat, false, "added to the root of v; 1e-8 when absent"},
                {"weight_decay", AttrType::kFloat, false, "per step and unit of lr"},
                kClipNorm,
                {"decay_ranges", AttrType::kInts, false,
                 "begin, end, ... of the elements that decay"}},
      .infer = InferAdamw<false>,
      .differentiable = false,
      .flops = [](const CostArgs& a) { return 14 * a.in[0].elements(); },
      .alias = Alias::kInPlace,
      .alias_count = 3};
  set->Add({.name = "low_copy",
            .doc = "param in bf16, as a mixed optimizer of the same step and key leaves it",
            .inputs = {"param"},
            .outputs = {"low"},
            .attrs = {kStochastic, kKey},
            .infer = InferLowCopy,
            .differentiable = false,
            .random = true});
  set->Add(Mixed(sgd, InferSgd<true>));
  set->Add(Mixed(adamw, InferAdamw<true>));
  set->Add(std::move(sgd));
  set->Add(std::move(adamw));
}

}  // namespace weft
