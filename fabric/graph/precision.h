// Precision of a forward graph: which ops compute in bf16, as each op's `precision` and
// `full_inputs` say, and which products may round to TF32. Pure passes; parameters, inputs and
// outputs keep their dtypes.
#pragma once

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/opset.h"

namespace weft {

// `graph` in bf16. A kNarrow op takes its f32 operands as bf16; a kFollow op does so when one of
// them is bf16 already; a kFull op takes bf16 operands as f32; `full_inputs` are f32 in any case,
// and so is every output that was. Each value is cast once, where it is first wanted in the other
// dtype. Ops in f64, and casts, stay as they are. Run it on what fusion has left, before backward
// is appended; composite ops count as kFull. An op that refuses its operands in bf16 is an error
// that names the node.
StatusOr<Graph> Narrow(const OpSet& ops, const Graph& graph);

// Sets `tf32` on every node whose op declares it. Run it after backward is appended.
Graph AllowTf32(const OpSet& ops, Graph graph);

// Whether `node` makes a bf16 value out of an f32 one: the gradient of such a value may be f32, and
// then reaches the f32 value without having been rounded.
bool IsNarrowingCast(const Graph& graph, const GraphNode& node);

}  // namespace weft
