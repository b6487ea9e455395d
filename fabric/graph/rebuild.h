// Emits a graph anew: what nobody needs goes away, composite ops become what they are made of, and
// all shapes are inferred again, if wanted at another number of samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/opset.h"

namespace weft {

struct RebuildOptions {
  int64_t rows = 0;                  // dimension 0 of every input; 0: as it is
  std::vector<std::string> outputs;  // which outputs are wanted; empty: all
  bool drop_unused_inputs = false;
};

// Node names, attributes and the order of nodes stay; parameters all stay, used or not.
// InvalidArgument names the node that cannot be had at `rows` samples (for example a reshape
// without -1).
StatusOr<Graph> Rebuild(const OpSet& ops, const Graph& graph, const RebuildOptions& options);

}  // namespace weft
