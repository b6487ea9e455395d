// Graph: a tensor program as data: parameters and inputs, nodes in topological order, named
// results. A plain value; all checks are in validate.h, construction in builder.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/tensor_meta.h"
#include "fabric/opset/attrs.h"

namespace weft {

using ValueId = int32_t;

// How a parameter starts. Draws are keyed by (seed, parameter name, element).
struct InitRule {
  enum class Kind { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  double scale = 0;  // normal: standard deviation; uniform: half width around zero
  friend bool operator==(const InitRule&, const InitRule&) = default;
};

struct GraphParameter {
  std::string name;
  ValueId value = -1;
  InitRule init;
  bool decay = false;  // whether weight decay applies
};

struct GraphInput {
  std::string name;  // dimension 0 counts samples
  ValueId value = -1;
};

struct GraphNode {
  std::string name;  // unique; names the place in errors and keys its random numbers
  std::string op;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  Attrs attrs;
};

// A result that somebody outside asks for by name. Training graphs have "loss_sum" (f32 scalar, the
// sum over valid targets) and "count" (f32 scalar, how many there were), and may have "correct"
// (f32 scalar); a prediction graph has "logits".
struct GraphOutput {
  std::string name;
  ValueId value = -1;
};

struct Graph {
  std::vector<TensorMeta> values;  // by ValueId
  std::vector<GraphParameter> parameters;
  std::vector<GraphInput> inputs;
  std::vector<GraphNode> nodes;
  std::vector<GraphOutput> outputs;

  // -1 when there is no such output.
  ValueId FindOutput(const std::string& name) const {
    for (const GraphOutput& o : outputs) {
      if (o.name == name) return o.value;
    }
    return -1;
  }
};

}  // namespace weft
