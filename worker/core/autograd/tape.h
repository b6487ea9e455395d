// The tape: marks leaves, and records ops between them so that Backward can run their gradient
// rules. Not thread-safe, as tensors' links are not.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/opset/op_def.h"
#include "fabric/opset/opset.h"
#include "worker/core/autograd/grad_mode.h"
#include "worker/core/autograd/grad_node.h"
#include "worker/core/autograd/save_plan.h"
#include "worker/core/tensor/tensor.h"

namespace weft {

// Makes `tensor`, of a float dtype and not itself an op's result on a tape, a leaf: Backward adds
// up its gradient. Marking a leaf again does nothing.
Status RequireGrad(const Tensor& tensor);
// Whether gradients flow back from `tensor`.
bool Tracked(const Tensor& tensor);
// A leaf's gradient so far; invalid when there is none.
Tensor GradOf(const Tensor& leaf);
void ClearGrad(const Tensor& leaf);

// Records ops. One an emitter; holds the cache of save plans.
class Tape {
 public:
  explicit Tape(const OpSet& ops) : ops_(ops) {}

  // Whether this call goes on the tape: recording is on here and some input is tracked.
  static bool Records(const OpDef& op, const std::vector<Tensor>& in);

  // Refuses inputs whose bytes and history have parted ways (FailedPrecondition), and recorded
  // writes onto a leaf. Before the op runs.
  static Status CheckInputs(const OpDef& op, const std::vector<Tensor>& in, bool records);

  // What must be known before an op overwrites its inputs.
  static std::vector<uint64_t> Versions(const std::vector<Tensor>& tensors);

  // Links the float results `out` to a new node. `in_versions` are from before the op ran.
  void Record(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& in,
              const std::vector<uint64_t>& in_versions, const std::vector<Tensor>& out);

 private:
  const SavePlan& PlanFor(const OpDef& op, const GradNode& node, const std::vector<bool>& need);

  const OpSet& ops_;
  absl::flat_hash_map<std::string, SavePlan> plans_;
};

// Whether `op` computes a gradient and has none of its own. Its results are tracked all the same,
// so that a second derivative through it is an error and not silently zero.
bool IsGradientKernel(const OpDef& op);

}  // namespace weft
