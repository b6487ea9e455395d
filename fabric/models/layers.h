// Layers that the model families share. Each declares its parameters as it is emitted, weight
// before bias; linears are stored [in, out]. Pure but for the builder.
#pragma once

#include <cstdint>
#include <string>

#include "fabric/graph/builder.h"
#include "fabric/models/graph_mode.h"

namespace weft {

// Parameters <name>.weight of ones, and <name>.bias of zeros.
struct NormLayer {
  bool rms = false;
  bool has_bias = false;  // layer norms only
  double eps = 1e-5;
};
Value Norm(GraphBuilder& b, const std::string& name, const Value& x, int64_t dim,
           const NormLayer& norm);

// Parameters <name> [from, to], and <name>.bias.
struct LinearLayer {
  InitRule weight;
  bool has_bias = false;
  InitRule bias;
};
Value Linear(GraphBuilder& b, const std::string& name, const Value& x, int64_t from, int64_t to,
             const LinearLayer& linear);

// x + attention(norm x), then x + the two-layer net with GELU of its norm; x is [rows, tokens,
// dim]. Named <name>.norm1, .attn.qkv, .attn.proj, .norm2, .mlp.up, .mlp.down.
struct BlockLayers {
  int64_t heads = 0;
  int64_t dim = 0;
  bool causal = false;
  double rotary_base = 0;  // 0: positions are no business of the block
  NormLayer norm;
  LinearLayer qkv, proj, up, down;
};
Value TransformerBlock(GraphBuilder& b, const std::string& name, const Value& x,
                       const BlockLayers& layers);

// What `mode` asks of logits [..., classes]; targets have the leading dimensions.
void EmitOutputs(GraphBuilder& b, const Value& logits, const Shape& targets, GraphMode mode);

}  // namespace weft
