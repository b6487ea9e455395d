#include "fabric/models/gpt.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/graph/builder.h"
#include "fabric/models/layers.h"

namespace weft {
namespace {

constexpr int64_t kMostLayers = 4096;
constexpr double kRmsEps = 1e-6;
constexpr double kLayerEps = 1e-5;
constexpr double kRotaryBase = 10000;

Status CheckSpec(const GptSpec& spec, int64_t rows) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", spec.layers},   {"heads", spec.heads}, {"dim", spec.dim},
      {"context", spec.context}, {"vocab", spec.vocab}, {"rows", rows}};
  for (const auto& [name, size] : sizes) {
    if (size < 1) return InvalidArgument(name, ": is ", size, ", wants at least 1");
    // Products of two sizes below stay within 64 bits; CheckShape bounds them further.
    if (size > (int64_t{1} << 30)) return InvalidArgument(name, ": is ", size, ", at most 2^30");
  }
  if (spec.layers > kMostLayers) {
    return InvalidArgument("layers: is ", spec.layers, ", at most ", kMostLayers);
  }
  if (spec.dim % spec.heads != 0) {
    return InvalidArgument("heads: ", spec.heads, " does not divide dim ", spec.dim);
  }
  if (spec.position == GptSpec::Position::kRotary && spec.dim / spec.heads % 2 != 0) {
    return InvalidArgument("heads: rotary positions need an even head width, dim / heads is ",
                           spec.dim / spec.heads);
  }
  if (!std::isfinite(spec.init_scale) || spec.init_scale < 0) {
    return InvalidArgument("init_scale: is ", spec.init_scale, ", wants a number from 0");
  }
  if (!std::isfinite(spec.residual_scale) || spec.residual_scale < 0) {
    return InvalidArgument("residual_scale: is ", spec.residual_scale, ", wants a number above 0");
  }
  return absl::OkStatus();
}

// Parameters are declared as the forward pass meets them, which is the order that gpt.h promises.
class Decoder {
 public:
  Decoder(const GptSpec& spec, int64_t rows) : spec_(spec), rows_(rows), b_(BuiltinOpSet()) {}

  StatusOr<Graph> Build(GraphMode mode) {
    const TensorMeta ids = {DType::kI32, {rows_, spec_.context}};
    const Value tokens = b_.Input("tokens", ids);
    const Value wte = Matrix("wte", spec_.vocab, spec_.dim, spec_.init_scale);
    Value x = b_.EmitNamed("wte", "embedding", {wte, tokens}, {})[0];  // [rows, context, dim]
    if (spec_.position == GptSpec::Position::kLearned) {
      const Value wpe = Matrix("wpe", spec_.context, spec_.dim, spec_.init_scale);
      x = b_.EmitNamed("wpe", "add", {x, wpe}, {})[0];
    }
    const BlockLayers block = Block();
    for (int64_t i = 0; i < spec_.layers; ++i) {
      x = TransformerBlock(b_, absl::StrCat("h.", i), x, block);
    }
    x = Norm(b_, "norm", x, spec_.dim, block.norm);
    EmitOutputs(b_, Head(x, wte), ids.shape, mode);
    return b_.Finish();
  }

 private:
  Value Matrix(const std::string& name, int64_t rows, int64_t cols, double scale) {
    return b_.Parameter(name, {DType::kF32, {rows, cols}}, {InitRule::Kind::kNormal, scale}, true);
  }

  enum class Into { kBlock, kResidual };

  // The standard deviation of a linear with `inputs` inputs.
  double LinearScale(int64_t inputs, Into into) const {
    const bool fan_in = spec_.init == GptSpec::Init::kFanIn;
    const double scale = fan_in ? 1 / std::sqrt(static_cast<double>(inputs)) : spec_.init_scale;
    if (into != Into::kResidual) return scale;
    if (spec_.residual_scale > 0) return scale * spec_.residual_scale;
    const double sums = 2.0 * static_cast<double>(spec_.layers);  // into the residual
    return fan_in ? scale / sums : scale / std::sqrt(sums);
  }

  LinearLayer LinearOf(int64_t inputs, Into into) const {
    return {{InitRule::Kind::kNormal, LinearScale(inputs, into)}, spec_.bias, {}};
  }

  BlockLayers Block() const {
    const bool rms = spec_.norm == GptSpec::Norm::kRms;
    BlockLayers block;
    block.heads = spec_.heads;
    block.dim = spec_.dim;
    block.causal = true;
    if (spec_.position == GptSpec::Position::kRotary) block.rotary_base = kRotaryBase;
    block.norm = {rms, spec_.bias, rms ? kRmsEps : kLayerEps};
    block.qkv = block.up = LinearOf(spec_.dim, Into::kBlock);
    block.proj = LinearOf(spec_.dim, Into::kResidual);
    block.down = LinearOf(4 * spec_.dim, Into::kResidual);
    return block;
  }

  Value Head(const Value& x, const Value& wte) {
    if (spec_.tied) return b_.EmitNamed("head", "linear", {x, wte}, {{"transpose_w", true}})[0];
    LinearLayer head = LinearOf(spec_.dim, Into::kBlock);
    head.has_bias = false;
    return Linear(b_, "head", x, spec_.dim, spec_.vocab, head);
  }

  const GptSpec& spec_;
  const int64_t rows_;
  GraphBuilder b_;
};

}  // namespace

StatusOr<Graph> BuildGpt(const GptSpec& spec, int64_t rows, GraphMode mode) {
  RETURN_IF_ERROR(CheckSpec(spec, rows));
  return Decoder(spec, rows).Build(mode);
}

}  // namespace weft
