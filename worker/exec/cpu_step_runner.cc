// The step runner of the CPU: each step is done when Submit returns.
#include "worker/exec/cpu_step_runner.h"

#include <cmath>
#include <utility>

#include "worker/exec/step_sections.h"

namespace weft {
namespace {

class CpuStepRunner final : public StepRunner {
 public:
  CpuStepRunner(const StepParts& parts, StepSections sections)
      : StepRunner(parts), sections_(std::move(sections)), stats_(StatsOf(parts.plan->program)) {}

  Status Allocate() {
    int buffers = sections_.schedule.buffers;
    if (parts_.plan->ranks > 1) reduce_buffer_ = buffers++;
    ASSIGN_OR_RETURN(memory_, RankMemory::Allocate(parts_.device, parts_.plan->program,
                                                   {.grad_buffers = buffers,
                                                    .scratch_bytes = sections_.scratch_bytes}));
    ASSIGN_OR_RETURN(state_, HostState::Make(parts_.device, &memory_));
    launcher_.tiles = parts_.tiles;
    launcher_.scratch = memory_.scratch();
    launcher_.trace = parts_.trace;
    return absl::OkStatus();
  }

  int depth() const override { return 1; }
  Status Submit(int64_t step, float request) override;
  StatusOr<StepResult> Confirm() override { return result_; }
  StatusOr<EvalSums> Evaluate() override;

 private:
  Status RunLanes(int64_t step);
  void AddBuffers(int into, int from);
  // Leaves the batch's sums in gradient buffer `*buffer`.
  Status Reduce(float request, int* buffer);

  StepSections sections_;
  const StatIndices stats_;
  Launcher launcher_;
  int reduce_buffer_ = -1;  // where an all-reduce over several ranks puts its result
  StatusOr<StepResult> result_;
};

void CpuStepRunner::AddBuffers(int into, int from) {
  SpaceBases bases;
  bases.inputs = {memory_.grad(into), memory_.grad(from)};
  sections_.add.Run(bases, launcher_, StepState{}).IgnoreError();  // the CPU's kernels cannot fail
}

Status CpuStepRunner::RunLanes(int64_t step) {
  const Plan& plan = *parts_.plan;
  const int64_t rows = plan.batch / plan.lanes;
  const int64_t tail = GradElements(plan.program) - 1;
  for (const LaneStep& lane : sections_.schedule.steps) {
    const SpaceBases bases = memory_.Bases(lane.buffer, RankMemory::Slots::kTrain);
    const int64_t first_row = lane.lane * rows;
    {
      const HostSpan span(parts_.trace, "data");
      LoadSamples(*parts_.dataset, SampleKind::kTrain, plan.program.inputs, bases.inputs,
                  step * plan.batch + first_row, rows);
    }
    RETURN_IF_ERROR(sections_.train.Run(bases, launcher_, {parts_.seed, step, first_row}));
    memory_.grad(lane.buffer)[tail] = 0;
    for (const BufferAdd& add : lane.adds) AddBuffers(add.into, add.from);
  }
  return absl::OkStatus();
}

Status CpuStepRunner::Reduce(float request, int* buffer) {
  const Plan& plan = *parts_.plan;
  const int64_t count = GradElements(plan.program);
  const int first = sections_.schedule.nodes[0].buffer;
  memory_.grad(first)[count - 1] = request;
  *buffer = first;
  if (plan.ranks == 1) return absl::OkStatus();

  comm::CollectiveCall call;
  call.kind = comm::Kind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = count;
  call.recv = memory_.grad(reduce_buffer_);
  call.label = "gradients";
  std::vector<comm::Partial> partials;
  if (plan.reduce == ReduceMode::kOrdered) {
    call.order = comm::Order::kOrdered;
    call.lanes = plan.lanes;
    for (const HeldNode& held : sections_.schedule.nodes)
      partials.push_back({held.node, memory_.grad(held.buffer)});
    call.partials = partials;
  } else {
    call.order = comm::Order::kRing;
    for (size_t i = 1; i < sections_.schedule.nodes.size(); ++i)
      AddBuffers(first, sections_.schedule.nodes[i].buffer);
    call.send = memory_.grad(first);
  }
  *buffer = reduce_buffer_;
  const HostSpan span(parts_.trace, "all-reduce");
  return parts_.comm->Launch(call, StreamTag{}, Deadline::After(parts_.collective_timeout));
}

Status CpuStepRunner::Submit(int64_t step, float request) {
  const Program& program = parts_.plan->program;
  *memory_.step() = step;
  RETURN_IF_ERROR(RunLanes(step));
  int buffer = 0;
  RETURN_IF_ERROR(Reduce(request, &buffer));
  const float* stats = memory_.grad(buffer) + program.flat_elements;
  StepResult result;
  result.loss = stats[stats_.loss] / stats[stats_.count];
  result.requests = memory_.grad(buffer)[GradElements(program) - 1];
  if (!std::isfinite(result.loss)) {
    result_ = NotFinite(step, result.loss, stats[stats_.count]);
    return absl::OkStatus();
  }
  result_ = result;
  return sections_.update.Run(memory_.Bases(buffer, RankMemory::Slots::kTrain), launcher_,
                              {parts_.seed, step, 0});
}

StatusOr<EvalSums> CpuStepRunner::Evaluate() {
  const Plan& plan = *parts_.plan;
  const EvalShare share = EvalShareOf(parts_);
  const size_t width = plan.program.stats.size();
  std::vector<float> mine(static_cast<size_t>(share.share) * width);
  const SpaceBases bases = memory_.Bases(0, RankMemory::Slots::kEval);
  for (int64_t group = share.begin; group < share.end; ++group) {
    const int64_t first = group * plan.eval_batch;
    LoadSamples(*parts_.dataset, SampleKind::kEval, plan.program.eval_inputs, bases.inputs, first,
                plan.eval_batch);
    RETURN_IF_ERROR(sections_.evaluate.Run(bases, launcher_, {parts_.seed, 0, first}));
    std::copy_n(static_cast<const float*>(bases.stats), width,
                mine.begin() + (group - share.begin) * static_cast<int64_t>(width));
  }
  return GatherEval(parts_, share, mine);
}

}  // namespace

StatusOr<std::unique_ptr<StepRunner>> MakeCpuStepRunner(const StepParts& parts) {
  ASSIGN_OR_RETURN(StepSections sections, StepSections::Bind(parts));
  auto runner = std::make_unique<CpuStepRunner>(parts, std::move(sections));
  RETURN_IF_ERROR(runner->Allocate());
  return std::unique_ptr<StepRunner>(std::move(runner));
}

}  // namespace weft
