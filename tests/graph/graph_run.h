// Runs graphs and program sections on seeded values, so that tests can compare what a rewrite or a
// lowering computes with what it started from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fabric/graph/graph.h"
#include "fabric/graph/program.h"
#include "worker/core/core.h"

namespace weft::testing {

using Named = std::map<std::string, std::vector<float>>;

// The seeded value of a parameter or f32 input: a function of its name.
std::vector<float> SeededValue(const std::string& name, int64_t elements);
// Ids of an i32 input: below `limit`; every seventh of "targets" is -1.
std::vector<int32_t> SeededInputIds(const std::string& name, int64_t elements, int64_t limit);

// All outputs of `graph`, node by node through the eager emitter; i32 inputs are below `vocab`.
StatusOr<Named> RunEagerly(Core& core, const Graph& graph, int64_t vocab);

struct TrainResult {
  std::vector<float> stats;
  Named gradients;  // by parameter
};
// The train section of `program`, one lane.
StatusOr<TrainResult> RunTrain(const Program& program, int64_t vocab);
// The logits that the predict section yields.
StatusOr<std::vector<float>> RunPredict(const Program& program, int64_t vocab);

// The largest |a - b| / max(1, |b|); infinite when sizes differ.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace weft::testing
