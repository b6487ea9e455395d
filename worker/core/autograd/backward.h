// Backward: runs gradient rules over the tape, from results to leaves, without recursion. Rules
// emit through the emitter that is handed in. Where several paths meet, gradients are added in the
// order in which the ops they come from were recorded, latest first, so the bits are the same in
// every run.
//
// A rule may give an f32 gradient for a bf16 value. It is narrowed, except where a cast made that
// value out of an f32 one: there gradients stay f32, and are added in f32.
#pragma once

#include <vector>

#include "fabric/opset/emitter.h"
#include "worker/core/autograd/tape.h"
#include "worker/core/tensor/tensor.h"

namespace weft {

struct BackwardOptions {
  // Keeps saved values, so that backward may go through the same ops again.
  bool keep = false;
};

// Adds d(loss)/d(leaf) to the gradient of every leaf that `loss` depends on. Unless `seed`, of the
// loss's shape, is given, the loss must have one element.
//
// FailedPrecondition: the loss is not tracked; a saved value was overwritten (the message names the
// op and both versions); backward has been through already. Unimplemented: an op on the way has no
// gradient rule (found before any rule runs). Leaves are untouched on error.
Status Backward(Emitter& e, const Tensor& loss, const BackwardOptions& options = {},
                const Tensor& seed = {});

struct GradientOptions {
  bool keep = false;
  // Records the gradients themselves, so that they can be differentiated again. Implies `keep`.
  bool create_graph = false;
};

// d(sum of `loss` times `seed`)/d(input) for each of `inputs`, leaves or results on the tape;
// invalid where the loss does not depend on the input. Leaves' own gradients stay as they are.
// Errors as above.
StatusOr<std::vector<Tensor>> Gradients(Emitter& e, const Tensor& loss,
                                        const std::vector<Tensor>& inputs,
                                        const GradientOptions& options = {},
                                        const Tensor& seed = {});

}  // namespace weft
