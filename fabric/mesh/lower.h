// Lowering: a graph becomes a flat list of kernel calls whose operands are places in buffers.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/graph/program.h"
#include "fabric/opset/opset.h"

namespace weft {

// A value that must end up at a place of its own.
struct Pin {
  ValueId value = -1;
  Space space = Space::kGrad;
  int64_t offset = 0;  // bytes
};

struct LowerRequest {
  const OpSet& ops;
  const Graph& graph;
  // By name: bytes into the flat parameter buffer.
  const absl::flat_hash_map<std::string, int64_t>& parameter_offsets;
  std::vector<Pin> pins;
  ValueId keep = -1;      // stays readable in the arena after the section; -1: none
  bool low_copy = false;  // kLow holds the parameters in bf16
};

struct Lowered {
  Section section;
  Operand kept;  // where `keep` is, contiguous
};

// Views and reshapes become operands with strides, not calls; where a kernel wants contiguous
// operands a `copy` call is put before it. A pinned value is written to its place by the call that
// makes it, or copied there where it is a view or pinned twice. With a low copy, a cast to bf16 of
// a parameter, or of a view of one, is no call but an operand in kLow.
StatusOr<Lowered> Lower(const LowerRequest& request);

}  // namespace weft
