#include "fabric/models/vit.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/graph/builder.h"
#include "fabric/models/layers.h"

namespace weft {
namespace {

constexpr int64_t kMostLayers = 4096;
constexpr double kRmsEps = 1e-8;
constexpr double kLayerEps = 1e-6;

Status CheckSpec(const VitSpec& spec, int64_t rows) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", spec.layers}, {"heads", spec.heads},
      {"dim", spec.dim},       {"image", spec.image},
      {"patch", spec.patch},   {"classes", spec.classes},
      {"rows", rows},          {"class_tokens", spec.class_tokens}};
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
  if (spec.image % spec.patch != 0) {
    return InvalidArgument("patch: ", spec.patch, " does not divide image ", spec.image);
  }
  if (!std::isfinite(spec.init_scale) || spec.init_scale < 0) {
    return InvalidArgument("init_scale: is ", spec.init_scale, ", wants a number from 0");
  }
  return absl::OkStatus();
}

// Parameters are declared as the forward pass meets them, which is the order that vit.h promises.
class Encoder {
 public:
  Encoder(const VitSpec& spec, int64_t rows) : spec_(spec), rows_(rows), b_(BuiltinOpSet()) {}

  StatusOr<Graph> Build(GraphMode mode) {
    Value x = Embedded(mode);  // [rows, patches, dim]
    const int64_t tokens = spec_.class_tokens + patches();
    const Value classes = Tokens("class_tokens", spec_.class_tokens);
    const Value repeated =
        b_.EmitNamed("class_tokens", "expand", {classes},
                     {{"shape", std::vector<int64_t>{rows_, spec_.class_tokens, spec_.dim}}})[0];
    x = b_.EmitNamed("tokens", "concat", {repeated, x}, {{"axis", int64_t{1}}})[0];
    x = b_.EmitNamed("positions", "add", {x, Tokens("positions", tokens)}, {})[0];
    const BlockLayers block = Block();
    for (int64_t i = 0; i < spec_.layers; ++i) {
      x = TransformerBlock(b_, absl::StrCat("h.", i), x, block);
    }
    x = b_.EmitNamed("pool", "slice", {x},
                     {{"axis", int64_t{1}}, {"begin", int64_t{0}}, {"end", spec_.class_tokens}})[0];
    x = b_.EmitNamed("pool.mean", "mean", {x}, {{"axes", std::vector<int64_t>{1}}})[0];
    x = Norm(b_, "norm", x, spec_.dim, block.norm);
    const Value logits = Linear(b_, "head", x, spec_.dim, spec_.classes, LinearOf(spec_.dim));
    EmitOutputs(b_, logits, {rows_}, mode);
    return b_.Finish();
  }

 private:
  int64_t patches() const {
    const int64_t side = spec_.image / spec_.patch;
    return side * side;
  }

  static LinearLayer LinearOf(int64_t inputs) {
    const InitRule rule = {InitRule::Kind::kUniform, 1 / std::sqrt(static_cast<double>(inputs))};
    return {rule, true, rule};
  }

  Value Tokens(const std::string& name, int64_t count) {
    return b_.Parameter(name, {DType::kF32, {count, spec_.dim}},
                        {InitRule::Kind::kNormal, spec_.init_scale}, true);
  }

  Value Embedded(GraphMode mode) {
    const ImageFeed& feed = spec_.feed;
    const bool training = mode == GraphMode::kTrain;
    const Value images =
        b_.Input("images", {DType::kU8, {rows_, feed.channels, spec_.image, spec_.image}});
    const Value patches = b_.EmitNamed("patches", "augment_images", {images},
                                       {{"mean", feed.mean},
                                        {"std", feed.deviation},
                                        {"padding", training ? feed.padding : 0},
                                        {"flip", training && feed.flip},
                                        {"patch", spec_.patch}})[0];
    const int64_t inputs = spec_.patch * spec_.patch * feed.channels;
    return Linear(b_, "embed", patches, inputs, spec_.dim, LinearOf(inputs));
  }

  BlockLayers Block() const {
    const bool rms = spec_.norm == VitSpec::Norm::kRms;
    BlockLayers block;
    block.heads = spec_.heads;
    block.dim = spec_.dim;
    block.norm = {rms, true, rms ? kRmsEps : kLayerEps};
    block.qkv = block.proj = block.up = LinearOf(spec_.dim);
    block.qkv.has_bias = spec_.qkv_bias;
    block.down = LinearOf(4 * spec_.dim);
    return block;
  }

  const VitSpec& spec_;
  const int64_t rows_;
  GraphBuilder b_;
};

}  // namespace

StatusOr<Graph> BuildVit(const VitSpec& spec, int64_t rows, GraphMode mode) {
  RETURN_IF_ERROR(CheckSpec(spec, rows));
  return Encoder(spec, rows).Build(mode);
}

}  // namespace weft
