// Partition: graphs at the size of one lane and an optimizer become the program that every rank
// runs.
#pragma once

#include <cstdint>
#include <optional>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/graph/program.h"
#include "fabric/opset/opset.h"

namespace weft {

struct OptimizerSpec {
  enum class Kind { kSgd, kAdamW };
  Kind kind = Kind::kSgd;
  double lr = 0;
  // Schedule.
  double min_lr = 0;
  int64_t warmup = 0;  // steps
  int64_t total = 0;   // steps
  bool cosine = false;
  double clip_norm = 0;  // 0: off
  double clamp = 0;      // SGD; 0: off
  // AdamW.
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

struct PartitionRequest {
  Graph train;                   // forward, one lane; may be empty (no nodes): prediction only
  Graph evaluate;                // forward, one lane of evaluation
  std::optional<Graph> predict;  // one sample, output "logits"
  OptimizerSpec optimizer;
  ComputePrecision precision = ComputePrecision::kFp32;
  bool stochastic_rounding = false;  // of the parameters' bf16 copy
};

// Fuses, narrows, appends backward, lays out memory. Graphs are valid and in f32. InvalidArgument
// as AppendBackward, and for stochastic rounding without bf16.
StatusOr<Program> MakeProgram(const OpSet& ops, const PartitionRequest& request);

}  // namespace weft
