// The decoder-only transformer family as graphs.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/models/graph_mode.h"

namespace weft {

struct GptSpec {
  enum class Position { kLearned, kRotary };
  enum class Norm { kLayer, kRms };
  // How matrices start; norm weights are ones, biases zeros.
  enum class Init {
    kNormal,  // normal(init_scale); linears into the residual: / sqrt(2 * layers)
    kFanIn,   // linears normal(1 / sqrt(inputs)), into the residual: / (2 * layers); embeddings
              // normal(init_scale)
  };
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t context = 0;
  int64_t vocab = 0;
  Position position = Position::kLearned;
  Norm norm = Norm::kLayer;
  bool tied = true;   // head = token embedding transposed
  bool bias = false;  // on linears and layer norms
  Init init = Init::kNormal;
  double init_scale = 0.02;   // standard deviation
  double residual_scale = 0;  // factor on linears into the residual; 0: by `init`
};

// Inputs tokens (and targets) i32 [rows, context]; logits f32 [rows, context, vocab].
// Parameters in this order, linears stored [in, out]: wte, wpe (learned),
// h.<i>.norm1.weight[.bias], h.<i>.attn.qkv, h.<i>.attn.proj, h.<i>.norm2.weight, h.<i>.mlp.up,
// h.<i>.mlp.down, norm.weight, head (untied); biases as <name>.bias after their weight (norm1.bias,
// attn.qkv.bias). InvalidArgument names the field that cannot be (heads not dividing dim, zero
// sizes, odd head width with rotary).
StatusOr<Graph> BuildGpt(const GptSpec& spec, int64_t rows, GraphMode mode);

}  // namespace weft
