// The list of families' literals.
#include "fabric/opset/opset.h"

#include "worker/core/ops/families.h"

namespace weft {

const OpSet& BuiltinOpSet() {
  static const OpSet* const set = [] {
    auto* ops = new OpSet;
    AddElementwiseOps(ops);
    AddReduceOps(ops);
    AddViewOps(ops);
    AddIndexOps(ops);
    AddRandomOps(ops);
    AddMatmulOps(ops);
    AddNormOps(ops);
    AddAttentionOps(ops);
    AddLossOps(ops);
    AddOptimOps(ops);
    AddImageOps(ops);
    return ops;
  }();
  return *set;
}

}  // namespace weft
