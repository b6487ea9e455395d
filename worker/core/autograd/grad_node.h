// GradNode: one recorded op, or one leaf, of the tape. The tape is the graph of nodes that the
// tensors in use reach; when the last of these goes, so do the nodes, without recursion however
// long the chain is. Not thread-safe: a graph of nodes belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/base/tensor_meta.h"
#include "fabric/opset/op_def.h"
#include "worker/core/tensor/tensor.h"

namespace weft {

// A value that a gradient rule will name. The tensor has no link of its own (links make cycles);
// backward gives it the one that the node's edges say.
struct SavedValue {
  Tensor tensor;  // invalid: not needed
  uint64_t version = 0;
};

class GradNode : public std::enable_shared_from_this<GradNode> {
 public:
  GradNode();
  ~GradNode();
  GradNode(const GradNode&) = delete;
  GradNode& operator=(const GradNode&) = delete;

  bool leaf() const { return op == nullptr; }

  const OpDef* op = nullptr;  // null: a leaf
  Attrs attrs;
  // Numbers grow in the order of recording, so a node's are above those of all that it depends on.
  const uint64_t sequence;
  std::vector<TapeLink> edges;  // one an input: where its gradient goes; empty link: nowhere
  std::vector<TensorMeta> in_metas;
  std::vector<TensorMeta> out_metas;
  std::vector<SavedValue> saved_in;
  std::vector<SavedValue> saved_out;
  bool released = false;  // backward has gone through and let the saved values go

  Tensor grad;  // a leaf's sum of gradients so far; invalid: none
};

}  // namespace weft
