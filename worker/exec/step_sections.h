// What every step runner is made of: a plan's sections bound to a device's kernels, the lane
// schedule, loading of samples, and the meaning of a step's statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "worker/exec/bound_section.h"
#include "worker/exec/lane_schedule.h"
#include "worker/exec/step_runner.h"

namespace weft {

struct StepSections {
  LaneSchedule schedule;
  BoundSection train, update, evaluate;
  BoundSection refresh;  // empty where the program keeps no bf16 copy
  BoundSection add;      // input slot 0 += input slot 1, over whole gradient buffers
  int64_t scratch_bytes = 0;

  static StatusOr<StepSections> Bind(const StepParts& parts);
};

// InvalidArgument when the data does not provide an input as the program wants it.
Status CheckSlots(const data::Dataset& dataset, const std::vector<InputSlot>& slots);

// Samples [first, first + rows) into host buffers, one a slot of `slots`. Past the end of the
// evaluation samples: the last one again, with its targets taken out of the count.
enum class SampleKind { kTrain, kEval };
void LoadSamples(const data::Dataset& dataset, SampleKind kind, const std::vector<InputSlot>& slots,
                 absl::Span<void* const> into, int64_t first, int64_t rows);

// Where the program's statistics are among a step's; -1: it has none of that name.
struct StatIndices {
  int loss = -1;
  int count = -1;
  int correct = -1;
};
StatIndices StatsOf(const Program& program);

// What a step without a finite loss ends with.
Status NotFinite(int64_t step, float loss, float count);

// Evaluation: groups of eval_batch samples, dealt out to ranks in order.
struct EvalShare {
  int64_t groups = 0;  // of all ranks
  int64_t share = 0;   // of each rank; the last ones may have fewer
  int64_t begin = 0;   // this rank's
  int64_t end = 0;
};
EvalShare EvalShareOf(const StepParts& parts);
// Gathers each rank's statistics (share x stats, row by row) and adds them in group order.
StatusOr<EvalSums> GatherEval(const StepParts& parts, const EvalShare& share,
                              const std::vector<float>& mine);

}  // namespace weft
