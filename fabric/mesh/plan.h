// Plan: everything that ranks must agree on to run a job: its program, how the batch is cut into
// lanes and lanes into ranks, and the numerics section. Plain values; fabric/wire converts to and
// from proto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fabric/base/lane_tree.h"
#include "fabric/graph/program.h"

namespace weft {

enum class ReduceMode : uint8_t { kOrdered = 0, kRing = 1 };

// What bits depend on. Decided once for a job, kept with it and in every checkpoint: the same
// section means the same bits, at any number of ranks.
struct Numerics {
  std::string device;                            // "cpu", or the GPU's model
  std::string instruction_set;                   // "avx512", "avx2", "sse2"; empty on GPUs
  std::map<std::string, std::string> libraries;  // name -> version
  std::string opset_digest;
  int32_t processors = 0;  // of the GPU; 0 on a CPU
  friend bool operator==(const Numerics&, const Numerics&) = default;
};

struct Estimate {
  int64_t parameter_count = 0;
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;  // with the tree's partial buffers
  int64_t state_bytes = 0;
  int64_t arena_bytes = 0;
  int64_t input_bytes = 0;
  int64_t total_bytes = 0;  // a rank
  int64_t step_flops = 0;   // of the whole batch
  int64_t wire_bytes = 0;   // sent by the busiest rank a step
  double step_seconds = 0;  // by the ceilings the planner was given
  int64_t low_bytes = 0;    // the BF16 copy of the parameters
};

struct Plan {
  Program program;
  Numerics numerics;
  int64_t batch = 0;  // samples a step
  int32_t lanes = 1;
  int32_t ranks = 1;
  std::vector<LaneRange> shares;  // by rank
  int64_t eval_batch = 0;         // samples a lane in evaluation
  ReduceMode reduce = ReduceMode::kOrdered;
  Estimate estimate;
  std::string reason;  // one sentence: why this many ranks and lanes
  ComputePrecision precision = ComputePrecision::kFp32;
};

}  // namespace weft
