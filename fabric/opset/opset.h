// OpSet: the ops there are, by name, in the order in which families list them. Immutable once
// built; safe to read from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

#include "fabric/base/status.h"
#include "fabric/opset/op_def.h"

namespace weft {

class OpSet {
 public:
  // A second op of the same name, or one without infer or name, is a bug of ours and ends the
  // process.
  void Add(OpDef def);

  // nullptr when there is no such op.
  const OpDef* Find(absl::string_view name) const;
  // NotFound with the nearest name when there is no such op.
  StatusOr<const OpDef*> Get(absl::string_view name) const;
  const std::vector<OpDef>& ops() const { return ops_; }

  // SHA-256 over names, operands, attributes and flags: processes that exchange graphs compare it.
  std::string Digest() const;

 private:
  std::vector<OpDef> ops_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// Arity, attribute names and types, then the op's own inference. InvalidArgument names the op and
// shapes.
StatusOr<std::vector<TensorMeta>> InferOp(const OpDef& op, const std::vector<TensorMeta>& in,
                                          const Attrs& attrs);

// FLOPs of one call.
int64_t FlopsOf(const OpDef& op, const std::vector<TensorMeta>& in,
                const std::vector<TensorMeta>& out, const Attrs& attrs);

// The built-in set, defined in worker/core/ops/opset.cc: op literals only, no tensor code.
const OpSet& BuiltinOpSet();

}  // namespace weft
