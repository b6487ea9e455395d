#include "worker/exec/step_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fabric/base/error_detail.h"
#include "fabric/base/hash.h"

namespace weft {
namespace {

int64_t StatIndex(const Program& program, const std::string& name) {
  const auto it = std::find(program.stats.begin(), program.stats.end(), name);
  return it == program.stats.end() ? -1 : it - program.stats.begin();
}

// A section of one call, into += from, over whole gradient buffers. The two are input slots 0
// and 1.
Section AddSection(int64_t elements) {
  const TensorMeta meta{DType::kF32, {elements}};
  const Operand into{Space::kInput, 0, 0, meta, ContiguousStrides(meta.shape)};
  const Operand from{Space::kInput, 1, 0, meta, ContiguousStrides(meta.shape)};
  Call call;
  call.op = "add";
  call.node = "lane_tree";
  call.in = {into, from};
  call.out = {into};
  return {{call}, 0};
}

Status NotFinite(int64_t step, float loss, float count) {
  ErrorDetail detail;
  detail.origin = "executor";
  detail.action = ErrorAction::kFixInput;
  detail.step = step;
  const Status status =
      count == 0
          ? InvalidArgument("step ", step,
                            ": no target counts in this batch, so there is no loss; the data marks "
                            "all of them as not counted")
          : InvalidArgument(
                "step ", step, ": the loss is ", loss,
                "; nothing was updated; lower the learning rate, clip gradients or check the data");
  return WithDetail(status, detail);
}

}  // namespace

StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const Parts& parts) {
  std::unique_ptr<StepRunner> runner(new StepRunner);
  runner->parts_ = parts;
  const Plan& plan = *parts.plan;
  const Program& program = plan.program;
  const int threads = parts.tiles->threads();
  runner->schedule_ = MakeLaneSchedule(plan.lanes, plan.shares[static_cast<size_t>(parts.rank)]);
  RETURN_IF_ERROR(runner->CheckSlots(program.inputs));
  RETURN_IF_ERROR(runner->CheckSlots(program.eval_inputs));
  const auto bind = [&](const Section& section, BoundSection* into) -> Status {
    ASSIGN_OR_RETURN(*into, BoundSection::Bind(section, *parts.kernels, DeviceKind::kCpu, threads));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(bind(program.train, &runner->train_));
  RETURN_IF_ERROR(bind(program.update, &runner->update_));
  RETURN_IF_ERROR(bind(program.evaluate, &runner->evaluate_));
  RETURN_IF_ERROR(bind(AddSection(GradElements(program)), &runner->add_));
  const int64_t scratch =
      std::max({runner->train_.scratch_bytes(), runner->update_.scratch_bytes(),
                runner->evaluate_.scratch_bytes(), runner->add_.scratch_bytes()});
  int buffers = runner->schedule_.buffers;
  if (plan.ranks > 1) runner->reduce_buffer_ = buffers++;
  ASSIGN_OR_RETURN(runner->memory_, RankMemory::Allocate(program, buffers, scratch));
  runner->launcher_ = {parts.tiles, StreamTag{}, runner->memory_.scratch()};
  return runner;
}

Status StepRunner::CheckSlots(const std::vector<InputSlot>& slots) const {
  for (const InputSlot& slot : slots) {
    const auto& offered = parts_.dataset->slots();
    const auto it = std::find_if(offered.begin(), offered.end(),
                                 [&](const data::Slot& s) { return s.name == slot.name; });
    if (it == offered.end()) {
      return InvalidArgument("the model's input '", slot.name,
                             "' is not among what the data provides");
    }
    const Shape per_sample(slot.meta.shape.begin() + 1, slot.meta.shape.end());
    if (it->sample.dtype != slot.meta.dtype || !(it->sample.shape == per_sample)) {
      return InvalidArgument("the model's input '", slot.name, "' wants ", ToString(slot.meta),
                             ", the data provides ", ToString(it->sample), " a sample");
    }
  }
  return absl::OkStatus();
}

Status StepRunner::LoadSlots(const std::vector<InputSlot>& slots, const SpaceBases& bases,
                             int64_t first, int64_t rows, bool eval) const {
  const auto& offered = parts_.dataset->slots();
  const int64_t available = eval ? parts_.dataset->eval_samples() : first + rows;
  std::vector<void*> into(offered.size());
  // Data may provide more than the model reads; the rest goes into one row that nobody looks at.
  std::vector<std::vector<char>> unused(offered.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < offered.size(); ++i) {
      const auto slot = std::find_if(slots.begin(), slots.end(),
                                     [&](const InputSlot& s) { return s.name == offered[i].name; });
      const int64_t row_bytes = offered[i].sample.bytes();
      if (slot == slots.end()) {
        unused[i].resize(static_cast<size_t>(row_bytes));
        into[i] = unused[i].data();
      } else {
        into[i] = static_cast<char*>(bases.inputs[static_cast<size_t>(slot - slots.begin())]) +
                  row * row_bytes;
      }
    }
    const int64_t number = first + row;
    if (!eval) {
      parts_.dataset->TrainSample(number, absl::MakeSpan(into));
    } else {
      // Past the end: the last sample again, with its targets taken out of the count.
      parts_.dataset->EvalSample(std::min(number, available - 1), absl::MakeSpan(into));
      if (number >= available) {
        for (size_t i = 0; i < offered.size(); ++i) {
          if (offered[i].name != "targets") continue;
          int32_t* targets = static_cast<int32_t*>(into[i]);
          std::fill_n(targets, offered[i].sample.elements(), data::kIgnored);
        }
      }
    }
  }
  return absl::OkStatus();
}

void StepRunner::AddBuffers(int into, int from) {
  SpaceBases bases;
  bases.inputs = {memory_.grad(into), memory_.grad(from)};
  add_.Run(bases, launcher_, StepState{}).IgnoreError();  // the CPU's kernels cannot fail
}

Status StepRunner::RunLanes(int64_t step) {
  const Plan& plan = *parts_.plan;
  const int64_t rows = plan.batch / plan.lanes;
  const int64_t tail = GradElements(plan.program) - 1;
  for (const LaneStep& lane : schedule_.steps) {
    const SpaceBases bases = memory_.Bases(lane.buffer, RankMemory::Slots::kTrain);
    const int64_t first_row = lane.lane * rows;
    RETURN_IF_ERROR(
        LoadSlots(plan.program.inputs, bases, step * plan.batch + first_row, rows, /*eval=*/false));
    RETURN_IF_ERROR(train_.Run(bases, launcher_, {parts_.seed, step, first_row}));
    memory_.grad(lane.buffer)[tail] = 0;
    for (const BufferAdd& add : lane.adds) AddBuffers(add.into, add.from);
  }
  return absl::OkStatus();
}

Status StepRunner::Reduce(float request, int* buffer) {
  const Plan& plan = *parts_.plan;
  const int64_t count = GradElements(plan.program);
  const int first = schedule_.nodes[0].buffer;
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
    for (const HeldNode& held : schedule_.nodes)
      partials.push_back({held.node, memory_.grad(held.buffer)});
    call.partials = partials;
  } else {
    call.order = comm::Order::kRing;
    for (size_t i = 1; i < schedule_.nodes.size(); ++i)
      AddBuffers(first, schedule_.nodes[i].buffer);
    call.send = memory_.grad(first);
  }
  *buffer = reduce_buffer_;
  return parts_.comm->Launch(call, StreamTag{}, Deadline::After(parts_.collective_timeout));
}

StatusOr<StepResult> StepRunner::Step(int64_t step, float request) {
  const Program& program = parts_.plan->program;
  *memory_.step() = step;
  RETURN_IF_ERROR(RunLanes(step));
  int buffer = 0;
  RETURN_IF_ERROR(Reduce(request, &buffer));
  const float* stats = memory_.grad(buffer) + program.flat_elements;
  const float count = stats[StatIndex(program, "count")];
  StepResult result;
  result.loss = stats[StatIndex(program, "loss_sum")] / count;
  result.requests = memory_.grad(buffer)[GradElements(program) - 1];
  if (!std::isfinite(result.loss)) return NotFinite(step, result.loss, count);
  RETURN_IF_ERROR(update_.Run(memory_.Bases(buffer, RankMemory::Slots::kTrain), launcher_,
                              {parts_.seed, step, 0}));
  return result;
}

StatusOr<EvalSums> StepRunner::Evaluate() {
  const Plan& plan = *parts_.plan;
  const Program& program = plan.program;
  const int64_t samples = parts_.dataset->eval_samples();
  const int64_t groups = (samples + plan.eval_batch - 1) / plan.eval_batch;
  const int64_t share = (groups + plan.ranks - 1) / plan.ranks;
  const int64_t width = static_cast<int64_t>(program.stats.size());
  std::vector<float> mine(static_cast<size_t>(share * width)),
      all(mine.size() * static_cast<size_t>(plan.ranks));
  const SpaceBases bases = memory_.Bases(0, RankMemory::Slots::kEval);
  const int64_t begin = parts_.rank * share, end = std::min(groups, begin + share);
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = group * plan.eval_batch;
    RETURN_IF_ERROR(LoadSlots(program.eval_inputs, bases, first, plan.eval_batch, /*eval=*/true));
    RETURN_IF_ERROR(evaluate_.Run(bases, launcher_, {parts_.seed, 0, first}));
    std::copy_n(static_cast<const float*>(bases.stats), width,
                mine.begin() + (group - begin) * width);
  }
  if (plan.ranks > 1) {
    comm::CollectiveCall call;
    call.kind = comm::Kind::kAllGather;
    call.count = static_cast<int64_t>(all.size());
    call.send = mine.data();
    call.recv = all.data();
    call.label = "evaluation";
    RETURN_IF_ERROR(
        parts_.comm->Launch(call, StreamTag{}, Deadline::After(parts_.collective_timeout)));
  } else {
    all = mine;
  }
  // In group order on every rank, whoever computed them.
  EvalSums sums;
  const int64_t loss = StatIndex(program, "loss_sum"), count = StatIndex(program, "count"),
                correct = StatIndex(program, "correct");
  for (int64_t group = 0; group < groups; ++group) {
    const float* stats = all.data() + group * width;
    sums.loss += stats[loss];
    sums.count += stats[count];
    if (correct >= 0) sums.correct += stats[correct];
  }
  return sums;
}

Status InitializeParameters(const Program& program, uint64_t seed, const KernelTable& kernels,
                            TileRunner* tiles, float* flat) {
  std::fill_n(flat, program.flat_elements, 0.0f);
  for (const ParameterSlot& p : program.parameters) {
    const int64_t elements = p.shape.elements();
    float* data = flat + p.offset;
    if (p.init.kind == InitRule::Kind::kOnes) std::fill_n(data, elements, 1.0f);
    if (p.init.kind != InitRule::Kind::kNormal && p.init.kind != InitRule::Kind::kUniform) continue;
    const bool normal = p.init.kind == InitRule::Kind::kNormal;
    const TensorMeta meta{DType::kF32, {elements}};
    Call call;
    call.op = normal ? "normal" : "uniform";
    call.node = p.name;
    call.out = {{Space::kParam, 0, 0, meta, ContiguousStrides(meta.shape)}};
    // The key is what makes draws of two parameters differ; the sign bit has no place in an
    // attribute.
    const int64_t key = static_cast<int64_t>(StableHash(p.name) >> 1);
    call.attrs =
        normal
            ? Attrs{{"shape", std::vector<int64_t>{elements}}, {"std", p.init.scale}, {"key", key}}
            : Attrs{{"shape", std::vector<int64_t>{elements}},
                    {"low", -p.init.scale},
                    {"high", p.init.scale},
                    {"key", key}};
    ASSIGN_OR_RETURN(BoundSection section,
                     BoundSection::Bind({{call}, 0}, kernels, DeviceKind::kCpu, tiles->threads()));
    ASSIGN_OR_RETURN(const Buffer scratch, AllocateZeroed(section.scratch_bytes()));
    SpaceBases bases;
    bases.param = data;
    RETURN_IF_ERROR(section.Run(bases, {tiles, StreamTag{}, scratch.data()}, {seed, 0, 0}));
  }
  return absl::OkStatus();
}

}  // namespace weft
