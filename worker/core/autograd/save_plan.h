// SavePlan: which inputs and outputs of an op its gradient rule names. Derived, not declared: the
// rule runs once on metadata alone, through an emitter that only infers shapes and notes which
// values it is handed.
#pragma once

#include <vector>

#include "fabric/opset/op_def.h"
#include "fabric/opset/opset.h"

namespace weft {

struct SavePlan {
  std::vector<bool> in;
  std::vector<bool> out;
  friend bool operator==(const SavePlan&, const SavePlan&) = default;
};

// `need[i]`: the gradient of input i will be asked for. A rule may look at which results gradients
// flow back from, so it is tried with each alone and then with all of those that it accepts. Where
// it accepts none on metadata, everything is kept, and backward reports the failure.
SavePlan DeriveSavePlan(const OpSet& ops, const OpDef& op, const std::vector<TensorMeta>& in,
                        const std::vector<TensorMeta>& out, const Attrs& attrs,
                        const std::vector<bool>& need);

}  // namespace weft
