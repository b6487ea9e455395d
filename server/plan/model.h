// What a job's model and training section mean as graphs and optimizer: from proto to the planner's
// words. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/mesh/partition.h"
#include "fabric/models/graph_mode.h"
#include "proto/job.pb.h"

namespace weft::plan {

// Settings of `train` with the defaults that admission would fill in.
OptimizerSpec OptimizerFromProto(const v1::TrainSpec& train);

// The model's forward graph at `rows` samples of the job's data. `mode` is training or evaluation.
StatusOr<Graph> ForwardGraph(const v1::JobSpec& job, int64_t rows, GraphMode mode);

// One sample's prediction. Absent: logits need more than tokens, or a client's graph has none.
StatusOr<std::optional<Graph>> PredictionGraph(const v1::ModelSpec& model);

}  // namespace weft::plan
