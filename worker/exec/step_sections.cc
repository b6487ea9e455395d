#include "worker/exec/step_sections.h"

#include <algorithm>
#include <utility>

#include "fabric/base/error_detail.h"

namespace weft {
namespace {

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

int IndexOf(const Program& program, const std::string& name) {
  const auto it = std::find(program.stats.begin(), program.stats.end(), name);
  return it == program.stats.end() ? -1 : static_cast<int>(it - program.stats.begin());
}

}  // namespace

StatusOr<StepSections> StepSections::Bind(const StepParts& parts) {
  const Plan& plan = *parts.plan;
  const Program& program = plan.program;
  RETURN_IF_ERROR(CheckSlots(*parts.dataset, program.inputs));
  RETURN_IF_ERROR(CheckSlots(*parts.dataset, program.eval_inputs));
  StepSections sections;
  sections.schedule = MakeLaneSchedule(plan.lanes, plan.shares[static_cast<size_t>(parts.rank)]);
  const int threads = parts.tiles == nullptr ? 1 : parts.tiles->threads();
  const auto bind = [&](const char* name, const Section& section, BoundSection* into) -> Status {
    ASSIGN_OR_RETURN(*into,
                     BoundSection::Bind(section, *parts.kernels, parts.device->id().kind, threads));
    if (parts.trace != nullptr) into->Name(name, section, parts.trace);
    sections.scratch_bytes = std::max(sections.scratch_bytes, into->scratch_bytes());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(bind("train", program.train, &sections.train));
  RETURN_IF_ERROR(bind("update", program.update, &sections.update));
  RETURN_IF_ERROR(bind("evaluate", program.evaluate, &sections.evaluate));
  RETURN_IF_ERROR(bind("refresh", program.refresh, &sections.refresh));
  RETURN_IF_ERROR(bind("lane tree", AddSection(GradElements(program)), &sections.add));
  return sections;
}

Status CheckSlots(const data::Dataset& dataset, const std::vector<InputSlot>& slots) {
  for (const InputSlot& slot : slots) {
    const auto& offered = dataset.slots();
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

void LoadSamples(const data::Dataset& dataset, SampleKind kind, const std::vector<InputSlot>& slots,
                 absl::Span<void* const> into, int64_t first, int64_t rows) {
  const auto& offered = dataset.slots();
  std::vector<void*> row_into(offered.size());
  // Data may provide more than the model reads; the rest goes into one row that nobody looks at.
  std::vector<std::vector<char>> unused(offered.size());
  std::vector<char*> base(offered.size());
  for (size_t i = 0; i < offered.size(); ++i) {
    const auto slot = std::find_if(slots.begin(), slots.end(),
                                   [&](const InputSlot& s) { return s.name == offered[i].name; });
    if (slot == slots.end()) {
      unused[i].resize(static_cast<size_t>(offered[i].sample.bytes()));
    } else {
      base[i] = static_cast<char*>(into[static_cast<size_t>(slot - slots.begin())]);
    }
  }
  const int64_t available = kind == SampleKind::kEval ? dataset.eval_samples() : first + rows;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < offered.size(); ++i) {
      row_into[i] =
          base[i] == nullptr ? unused[i].data() : base[i] + row * offered[i].sample.bytes();
    }
    const int64_t number = first + row;
    if (kind == SampleKind::kTrain) {
      dataset.TrainSample(number, absl::MakeSpan(row_into));
      continue;
    }
    dataset.EvalSample(std::min(number, available - 1), absl::MakeSpan(row_into));
    for (size_t i = 0; i < offered.size() && number >= available; ++i) {
      if (offered[i].name != "targets") continue;
      std::fill_n(static_cast<int32_t*>(row_into[i]), offered[i].sample.elements(), data::kIgnored);
    }
  }
}

StatIndices StatsOf(const Program& program) {
  return {IndexOf(program, "loss_sum"), IndexOf(program, "count"), IndexOf(program, "correct")};
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

EvalShare EvalShareOf(const StepParts& parts) {
  const Plan& plan = *parts.plan;
  EvalShare share;
  share.groups = (parts.dataset->eval_samples() + plan.eval_batch - 1) / plan.eval_batch;
  share.share = (share.groups + plan.ranks - 1) / plan.ranks;
  share.begin = std::min(share.groups, parts.rank * share.share);
  share.end = std::min(share.groups, share.begin + share.share);
  return share;
}

StatusOr<EvalSums> GatherEval(const StepParts& parts, const EvalShare& share,
                              const std::vector<float>& mine) {
  const Plan& plan = *parts.plan;
  std::vector<float> all(mine.size() * static_cast<size_t>(plan.ranks));
  if (plan.ranks > 1) {
    comm::CollectiveCall call;
    call.kind = comm::Kind::kAllGather;
    call.count = static_cast<int64_t>(all.size());
    call.send = mine.data();
    call.recv = all.data();
    call.label = "evaluation";
    RETURN_IF_ERROR(
        parts.comm->Launch(call, StreamTag{}, Deadline::After(parts.collective_timeout)));
  } else {
    all = mine;
  }
  // In group order on every rank, whoever computed them.
  EvalSums sums;
  const StatIndices at = StatsOf(plan.program);
  for (int64_t group = 0; group < share.groups; ++group) {
    const float* stats = all.data() + group * static_cast<int64_t>(plan.program.stats.size());
    sums.loss += stats[at.loss];
    sums.count += stats[at.count];
    if (at.correct >= 0) sums.correct += stats[at.correct];
  }
  return sums;
}

}  // namespace weft
