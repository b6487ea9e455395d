// One training step of one rank: its lanes' forward and backward, the lane tree, the reduction over
// ranks, the update. Bits depend on the plan's numerics and lanes only, never on the number of
// ranks or threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"
#include "fabric/mesh/plan.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/data/dataset.h"
#include "worker/exec/bound_section.h"
#include "worker/exec/lane_schedule.h"
#include "worker/exec/rank_memory.h"

namespace weft {

struct StepResult {
  float loss = 0;  // mean over the batch's counted targets
  float requests =
      0;  // sum over ranks of what each passed to Step: how ranks agree to stop at one step
};

// Sums over counted targets of all evaluation samples.
struct EvalSums {
  double loss = 0;
  double count = 0;
  double correct = 0;
};

class StepRunner {
 public:
  struct Parts {
    const Plan* plan = nullptr;  // outlives the runner, as do the others
    int32_t rank = 0;
    uint64_t seed = 0;
    const KernelTable* kernels = nullptr;
    TileRunner* tiles = nullptr;
    comm::Communicator* comm = nullptr;
    const data::Dataset* dataset = nullptr;
    absl::Duration collective_timeout = absl::Minutes(5);
  };

  // Binds the program's sections and allocates this rank's memory. Errors as BoundSection::Bind and
  // RankMemory::Allocate.
  static StatusOr<std::unique_ptr<StepRunner>> Create(const Parts& parts);

  // Runs step `step` (from 0) of all ranks. `request` >= 0 is summed over ranks into
  // StepResult::requests. A loss that is not finite is InvalidArgument and changes no parameter.
  StatusOr<StepResult> Step(int64_t step, float request);

  // Sums over the dataset's evaluation samples, the same on all ranks.
  StatusOr<EvalSums> Evaluate();

  RankMemory& memory() { return memory_; }

 private:
  StepRunner() = default;

  Status LoadSlots(const std::vector<InputSlot>& slots, const SpaceBases& bases, int64_t first,
                   int64_t rows, bool eval) const;
  Status RunLanes(int64_t step);
  void AddBuffers(int into, int from);
  // Leaves the batch's sums in gradient buffer `*buffer`.
  Status Reduce(float request, int* buffer);
  Status CheckSlots(const std::vector<InputSlot>& slots) const;

  Parts parts_;
  LaneSchedule schedule_;
  RankMemory memory_;
  BoundSection train_, update_, evaluate_, add_;
  Launcher launcher_;
  int reduce_buffer_ = -1;  // where an all-reduce over several ranks puts its result
};

// Starts parameters by their rules: draws are keyed by (seed, parameter name, element).
Status InitializeParameters(const Program& program, uint64_t seed, const KernelTable& kernels,
                            TileRunner* tiles, float* flat);

}  // namespace weft
