#include "fabric/models/layers.h"

namespace weft {

Value Norm(GraphBuilder& b, const std::string& name, const Value& x, int64_t dim,
           const NormLayer& norm) {
  const TensorMeta vector = {DType::kF32, {dim}};
  Values in = {x, b.Parameter(name + ".weight", vector, {InitRule::Kind::kOnes, 0}, false)};
  if (!norm.rms && norm.has_bias) {
    in.push_back(b.Parameter(name + ".bias", vector, {InitRule::Kind::kZeros, 0}, false));
  }
  return b.EmitNamed(name, norm.rms ? "rms_norm" : "layer_norm", in, {{"eps", norm.eps}})[0];
}

Value Linear(GraphBuilder& b, const std::string& name, const Value& x, int64_t from, int64_t to,
             const LinearLayer& linear) {
  Values in = {x, b.Parameter(name, {DType::kF32, {from, to}}, linear.weight, true)};
  if (linear.has_bias) {
    in.push_back(b.Parameter(name + ".bias", {DType::kF32, {to}}, linear.bias, false));
  }
  return b.EmitNamed(name, "linear", in, {})[0];
}

Value TransformerBlock(GraphBuilder& b, const std::string& name, const Value& x,
                       const BlockLayers& layers) {
  const int64_t dim = layers.dim;
  Value y = Norm(b, name + ".norm1", x, dim, layers.norm);
  y = Linear(b, name + ".attn.qkv", y, dim, 3 * dim, layers.qkv);  // [rows, tokens, 3 * dim]
  if (layers.rotary_base > 0) {
    y = b.EmitNamed(name + ".attn.rotary", "rotary", {y},
                    {{"heads", layers.heads}, {"base", layers.rotary_base}})[0];
  }
  y = b.EmitNamed(name + ".attn", "attention", {y},
                  {{"heads", layers.heads}, {"causal", layers.causal}})[0];
  y = Linear(b, name + ".attn.proj", y, dim, dim, layers.proj);
  const Value middle = b.EmitNamed(name + ".attn.residual", "add", {x, y}, {})[0];
  y = Norm(b, name + ".norm2", middle, dim, layers.norm);
  y = Linear(b, name + ".mlp.up", y, dim, 4 * dim, layers.up);
  y = b.EmitNamed(name + ".mlp.gelu", "gelu", {y}, {})[0];
  y = Linear(b, name + ".mlp.down", y, 4 * dim, dim, layers.down);
  return b.EmitNamed(name + ".mlp.residual", "add", {middle, y}, {})[0];
}

void EmitOutputs(GraphBuilder& b, const Value& logits, const Shape& targets, GraphMode mode) {
  if (mode == GraphMode::kPredict) return b.Output("logits", logits);
  const Value ids = b.Input("targets", {DType::kI32, targets});
  const Values loss = b.EmitNamed("loss", "cross_entropy", {logits, ids}, {});
  const char* names[] = {"loss_sum", "count", "correct"};
  for (size_t i = 0; i < 3 && i < loss.size(); ++i) b.Output(names[i], loss[i]);
}

}  // namespace weft
