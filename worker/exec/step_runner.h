// StepRunner: training steps of one rank: its lanes' forward and backward, the lane tree, the
// reduction over ranks, the update. Bits depend on the plan's numerics and lanes only, never on the
// number of ranks or threads. Used from one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"
#include "fabric/mesh/plan.h"
#include "worker/core/device/device.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/data/dataset.h"
#include "worker/exec/host_state.h"
#include "worker/exec/rank_memory.h"
#include "worker/exec/step_trace.h"

namespace weft {

struct StepResult {
  float loss = 0;  // mean over the batch's counted targets
  float requests =
      0;  // sum over ranks of what each passed to Submit: how ranks agree to stop at one step
};

// Sums over counted targets of all evaluation samples.
struct EvalSums {
  double loss = 0;
  double count = 0;
  double correct = 0;
};

// What a runner holds and has recorded.
struct RunnerCounters {
  int64_t pool_bytes = 0;     // all buffers on the device
  int64_t arena_bytes = 0;    // of these
  int64_t scratch_bytes = 0;  // of these
  int64_t pinned_bytes = 0;
  int64_t graph_nodes = 0;  // of one recorded step
  int64_t captures = 0;
  absl::Duration capture_time;
};

// What a runner is made of; all of it outlives the runner.
struct StepParts {
  const Plan* plan = nullptr;
  int32_t rank = 0;
  uint64_t seed = 0;
  Device* device = nullptr;
  const KernelTable* kernels = nullptr;
  TileRunner* tiles = nullptr;                // CPU
  comm::Communicator* comm = nullptr;         // of the host
  comm::Communicator* device_comm = nullptr;  // of the device; null on the CPU and for one rank
  const data::Dataset* dataset = nullptr;
  StepTrace* trace = nullptr;  // null: nothing is traced
  absl::Duration collective_timeout = absl::Minutes(5);
};

class StepRunner {
 public:
  // The runner of the parts' kind of device. Errors as BoundSection::Bind and RankMemory::Allocate.
  static StatusOr<std::unique_ptr<StepRunner>> Create(const StepParts& parts);
  virtual ~StepRunner() = default;

  // How many steps may be submitted and not confirmed. The same on all ranks of a job.
  virtual int depth() const = 0;
  // Begins step `step` (from 0, without gaps) of all ranks. `request` >= 0 is summed over ranks
  // into StepResult::requests of this step or, on a device, of one submitted before it.
  virtual Status Submit(int64_t step, float request) = 0;
  // Waits for the oldest submitted step. A loss that is not finite is InvalidArgument: neither that
  // step nor a later one changed a parameter.
  virtual StatusOr<StepResult> Confirm() = 0;

  // Sums over the dataset's evaluation samples, the same on all ranks. All steps are confirmed.
  virtual StatusOr<EvalSums> Evaluate() = 0;

  // Training state on the host: FetchState before it is read, StoreState after it was written.
  // `next_step` is the first that will run: a bf16 copy of the parameters is what the update before
  // it left.
  HostState& state() { return state_; }
  virtual Status FetchState() { return absl::OkStatus(); }
  virtual Status StoreState(int64_t /*next_step*/) { return absl::OkStatus(); }

  const RankMemory& memory() const { return memory_; }
  RunnerCounters counters() const {
    RunnerCounters counters = recorded_;
    counters.pool_bytes = memory_.total_bytes();
    counters.arena_bytes = memory_.arena_bytes();
    counters.scratch_bytes = memory_.scratch_bytes();
    return counters;
  }

 protected:
  explicit StepRunner(const StepParts& parts) : parts_(parts) {}

  const StepParts parts_;
  RankMemory memory_;
  HostState state_;
  RunnerCounters recorded_;  // without what `memory_` knows
};

// Starts parameters by their rules, on the host: draws are keyed by (seed, parameter name,
// element).
Status InitializeParameters(const Program& program, uint64_t seed, const KernelTable& kernels,
                            TileRunner* tiles, float* flat);

}  // namespace weft
