// Whether a graph that came from outside may be used. Pure; safe on hostile input.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/opset.h"

namespace weft {

struct GraphLimits {
  int64_t nodes = 100'000;
  int64_t edges = 1'000'000;  // inputs of all nodes together
  int64_t name_bytes = 253;
  int64_t attr_bytes = 1 << 20;  // of one text attribute; lists: 8 bytes an element
};

// Ids in range, each value made once and before its use, names fit and unique, every node's results
// as its op infers them, sizes within `limits` and CheckShape. InvalidArgument names node, shapes
// and limit.
Status ValidateGraph(const OpSet& ops, const Graph& graph, const GraphLimits& limits = {});

// What training asks of a valid graph beyond that: "loss_sum" and "count" as f32 scalars, "correct"
// too if it is there, f32 parameters, and inputs that agree on the number of samples.
Status ValidateTrainingGraph(const Graph& graph);

}  // namespace weft
