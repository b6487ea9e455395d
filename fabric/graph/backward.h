// Reverse-mode differentiation of a graph: the ops' own gradient rules, emitted through the
// builder.
#pragma once

#include <string>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/opset.h"

namespace weft {

// The output that AppendBackward names a parameter's gradient by.
std::string GradientName(const std::string& parameter);

// `graph` with nodes after it that compute the gradient of output "loss_sum" with respect to each
// parameter, as further outputs in the order of the parameters. Where several paths meet, gradients
// are added in the reverse order of the nodes they come through, so the order of additions is a
// function of the graph. A rule may give an f32 gradient for a bf16 value: it is narrowed, except
// where a cast made that value out of an f32 one; there gradients are f32, and added in f32, as
// soon as one of them is, so that a parameter's gradient is never rounded. InvalidArgument: no
// loss_sum, or a parameter that does not reach it. Unimplemented: an op on the path has no gradient
// (names node and op).
StatusOr<Graph> AppendBackward(const OpSet& ops, Graph graph);

}  // namespace weft
