// Fusion: rewriting of a graph by rows, each "an op that feeds an op becomes one op". Most fused
// ops are ordinary ops with gradients of their own and replace others in the forward graph, before
// backward is appended; rows of the stage kBackward are for what backward appends.
#pragma once

#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/opset.h"

namespace weft {

enum class Purpose { kTraining, kInference };
enum class FusionStage { kForward, kBackward };

struct FusionRule {
  const char* name;
  FusionStage stage;
  const char* first;   // result 0 of this op ...
  const char* second;  // ... is this input of this one
  int second_input;
  const char* fused;
  bool training_only;  // the fused op computes what only backward needs
  bool keeps_first;    // the fused op also yields the first op's result, so others may use it
  int unused_result;   // this result of the second op must have no use, as the fused op lacks it;
                       // -1: none
  // Whether these two fit, beyond their ops. Null: always.
  bool (*fits)(const Graph& graph, const GraphNode& first, const GraphNode& second);
  // The fused node's operands, results (-1: a result that nobody has yet) and attributes.
  GraphNode (*make)(const GraphNode& first, const GraphNode& second);
};

// The rows, in the order in which they are tried.
absl::Span<const FusionRule> FusionRules();

// `graph` with every rule of the stage applied wherever it fits. Values that are outputs of the
// graph stay.
StatusOr<Graph> Fuse(const OpSet& ops, Graph graph, Purpose purpose,
                     FusionStage stage = FusionStage::kForward);

// Replaces scale_by(x, fill(1)) by x: what the seed of backward leaves behind. Run after
// AppendBackward.
Graph DropUnitScales(Graph graph);

}  // namespace weft
