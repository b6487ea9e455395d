// What attention and rotary embedding mean.
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

// Width of one head of a packed qkv [B, T, 3 * H * D].
StatusOr<int64_t> HeadWidth(const Shape& qkv, const Attrs& attrs, bool rotates) {
  const int64_t heads = attrs.GetInt("heads");
  if (heads < 1) return InvalidArgument("heads is 1 or more, got ", heads);
  if (qkv.rank() != 3) return InvalidArgument("qkv is [batch, time, 3 * heads * width]");
  if (qkv.dim(2) == 0 || qkv.dim(2) % (3 * heads) != 0) {
    return InvalidArgument("qkv has ", qkv.dim(2),
                           " features, not a multiple of 3 * heads = ", 3 * heads);
  }
  const int64_t width = qkv.dim(2) / (3 * heads);
  if (rotates && width % 2 != 0) {
    return InvalidArgument("rotary needs an even head width, got ", width);
  }
  return width;
}

bool Rotates(const Attrs& attrs) { return attrs.GetFloat("rotary_base") != 0; }

StatusOr<std::vector<TensorMeta>> InferRotary(const InferArgs& args) {
  RETURN_IF_ERROR(CheckNarrow(args.in[0], "qkv"));
  RETURN_IF_ERROR(HeadWidth(args.in[0].shape, args.attrs, true).status());
  if (args.attrs.GetFloat("base") <= 1) return InvalidArgument("base is above 1");
  return std::vector<TensorMeta>{args.in[0]};
}

Values RotaryGrad(const GradArgs& g) {
  Attrs attrs = g.attrs;
  attrs.Set("inverse", !g.attrs.GetBool("inverse"));
  return {g.e.Emit("rotary", {g.d[0]}, attrs)};
}

StatusOr<std::vector<TensorMeta>> InferAttention(const InferArgs& args) {
  RETURN_IF_ERROR(CheckNarrow(args.in[0], "qkv"));
  const Shape& qkv = args.in[0].shape;
  const double base = args.attrs.GetFloat("rotary_base");
  if (base != 0 && base <= 1) return InvalidArgument("rotary_base is 0 or above 1, got ", base);
  ASSIGN_OR_RETURN(const int64_t width, HeadWidth(qkv, args.attrs, Rotates(args.attrs)));
  const int64_t heads = args.attrs.GetInt("heads");
  return std::vector<TensorMeta>{{args.in[0].dtype, Shape{qkv.dim(0), qkv.dim(1), heads * width}},
                                 {DType::kF32, Shape{qkv.dim(0), heads, qkv.dim(1)}}};
}

StatusOr<std::vector<TensorMeta>> InferAttentionGrad(const InferArgs& args) {
  ASSIGN_OR_RETURN(const std::vector<TensorMeta> forward,
                   InferAttention({{args.in[1]}, args.attrs}));
  if (args.in[0] != forward[0] || args.in[2] != forward[0]) {
    return InvalidArgument("dy and y are ", ToString(forward[0]));
  }
  if (args.in[3] != forward[1]) return InvalidArgument("lse is ", ToString(forward[1]));
  return std::vector<TensorMeta>{args.in[1]};
}

Values AttentionGrad(const GradArgs& g) {
  if (g.d[1].valid()) {
    g.e.Fail(InvalidArgument("lse of attention has no gradient"));
    return {Value()};
  }
  return {g.e.Emit("attention_grad", {g.d[0], g.in[0], g.out[0], g.out[1]}, g.attrs)};
}

// Two products of 2 T^2 D a head; the causal half is skipped.
int64_t ProductFlops(const Shape& qkv, const Attrs& attrs, int64_t products) {
  const int64_t t = qkv.dim(1), all = qkv.dim(0) * t * t * (qkv.dim(2) / 3) * 2 * products;
  return attrs.GetBool("causal") ? all / 2 : all;
}

const std::vector<AttrDef> kAttentionAttrs = {
    {"heads", AttrType::kInt, true, "number of heads H"},
    {"causal", AttrType::kBool, false, "position t sees positions up to t"},
    {"rotary_base", AttrType::kFloat, false,
     "q and k are rotated with this base first; 0: not at all"},
    {"tf32", AttrType::kBool, false, "products of f32 operands may round them to TF32"}};

}  // namespace

void AddAttentionOps(OpSet* set) {
  set->Add(
      {.name = "rotary",
       .doc = "rotates pairs (i, i + D/2) of q and k by t * base^(-2 i / D) (arXiv 2104.09864)",
       .inputs = {"qkv"},
       .attrs = {{"heads", AttrType::kInt, true, "number of heads H"},
                 {"base", AttrType::kFloat, true, "wavelength base, 10000 as published"},
                 {"inverse", AttrType::kBool, false, "rotates back"}},
       .infer = InferRotary,
       .grad = RotaryGrad,
       .precision = Precision::kFollow});
  set->Add(
      {.name = "attention",
       .doc = "y = softmax(q k' / sqrt(D)) v by heads of a packed qkv; lse is the row's log sum",
       .inputs = {"qkv"},
       .outputs = {"y", "lse"},
       .attrs = kAttentionAttrs,
       .infer = InferAttention,
       .grad = AttentionGrad,
       .flops = [](const CostArgs& a) { return ProductFlops(a.in[0].shape, a.attrs, 2); },
       .precision = Precision::kNarrow});
  set->Add({.name = "attention_grad",
            .doc = "dqkv of attention, from probabilities computed again out of lse",
            .inputs = {"dy", "qkv", "y", "lse"},
            .outputs = {"dqkv"},
            .attrs = kAttentionAttrs,
            .infer = InferAttentionGrad,
            .differentiable = false,
            .flops = [](const CostArgs& a) { return ProductFlops(a.in[1].shape, a.attrs, 5); },
            .precision = Precision::kFollow,
            .full_inputs = {"lse"}});
}

}  // namespace weft
