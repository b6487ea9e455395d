// The step runner of devices with queues and graphs. A whole step of this rank (lanes, tree,
// all-reduce, gate, update) is recorded once for each of two sets of input buffers and replayed;
// the host only fills inputs, launches, and reads what each step left in a ring of pinned memory,
// up to kDepth steps late. So nothing in the loop waits for the device but the ring.
//
//   copy stream  | inputs of step n+1 -> set (n+1) % 2 |          |
//   step stream  | graph n (reads set n % 2)           | graph n+1 | ...
#include "worker/exec/device_step_runner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/base/clock.h"
#include "fabric/base/error_detail.h"
#include "worker/core/device/step_kernels.h"
#include "worker/exec/step_sections.h"

namespace weft {
namespace {

constexpr int kSets = 2;
constexpr int kDepth = 8;

// Handles that go with the runner.
class OwnedStream {
 public:
  Status Make(Device* device) {
    device_ = device;
    ASSIGN_OR_RETURN(stream_, device->CreateStream());
    return absl::OkStatus();
  }
  ~OwnedStream() {
    if (stream_.handle != nullptr) device_->DestroyStream(stream_);
  }
  StreamTag get() const { return stream_; }

 private:
  Device* device_ = nullptr;
  StreamTag stream_;
};

class OwnedEvent {
 public:
  Status Make(Device* device) {
    device_ = device;
    ASSIGN_OR_RETURN(event_, device->CreateEvent());
    return absl::OkStatus();
  }
  ~OwnedEvent() {
    if (event_.handle != nullptr) device_->DestroyEvent(event_);
  }
  EventTag get() const { return event_; }

 private:
  Device* device_ = nullptr;
  EventTag event_;
};

StatusOr<Buffer> AllocatePinned(Device* device, int64_t bytes, int64_t* sum) {
  *sum += bytes;
  ASSIGN_OR_RETURN(void* const data, device->AllocatePinned(bytes));
  std::memset(data, 0, static_cast<size_t>(bytes));
  return Buffer(data, static_cast<size_t>(bytes), DeviceId{},
                [device](void* p, size_t) { device->FreePinned(p); });
}

class DeviceStepRunner final : public StepRunner {
 public:
  DeviceStepRunner(const StepParts& parts, StepSections sections)
      : StepRunner(parts),
        device_(*parts.device),
        sections_(std::move(sections)),
        stats_(StatsOf(parts.plan->program)),
        stat_count_(static_cast<int>(parts.plan->program.stats.size())) {}
  ~DeviceStepRunner() override;

  Status Allocate();

  int depth() const override { return kDepth; }
  Status Submit(int64_t step, float request) override;
  StatusOr<StepResult> Confirm() override;
  StatusOr<EvalSums> Evaluate() override;
  Status FetchState() override { return state_.Fetch(stream_.get()); }
  Status StoreState(int64_t next_step) override;

 private:
  Status Check(int error, const char* doing) const {
    if (error == 0) return absl::OkStatus();
    return Internal(doing, ": ", device_.Describe(error));
  }
  void Ran(int32_t label) const {
    if (parts_.trace != nullptr) parts_.trace->Ran(label, stream_.get(), absl::ZeroDuration());
  }
  int64_t rows() const { return parts_.plan->batch / parts_.plan->lanes; }
  int lanes() const { return static_cast<int>(sections_.schedule.steps.size()); }

  Status Begin(int64_t step);
  Status LoadInputs(int64_t step);
  Status Record(int set);
  Status QueueStep(int set);
  Status QueueReduce(int* buffer);
  comm::CollectiveCall ReduceCall(std::vector<comm::Partial>* partials) const;
  Status AddBuffers(int into, int from);
  StatusOr<const StepSlot*> WaitForSlot(int64_t step);

  Device& device_;
  StepSections sections_;
  const StatIndices stats_;
  const int stat_count_;
  OwnedStream stream_, copies_;
  std::array<OwnedEvent, kSets> loaded_, used_;
  std::array<GraphTag, kSets> graphs_;
  Launcher launcher_;
  // Of a trace: what of a step is no call of the program.
  struct PartLabels {
    int32_t request = -1, clear = -1, reduce = -1, check = -1, finish = -1;
  };
  PartLabels labels_;
  int reduce_buffer_ = -1;
  // By (step % kDepth, lane): what TrainSample fills.
  std::vector<std::vector<Buffer>> staging_;
  Buffer ring_;     // StepSlot[kDepth], written by the device
  Buffer control_;  // host words that the device reads: StepControl
  Buffer gate_;     // device word
  Buffer eval_staging_, eval_stats_;
  int64_t submitted_ = -1;  // the next step to submit; -1: none was
  int64_t confirmed_ = 0;   // the next step to confirm
};

DeviceStepRunner::~DeviceStepRunner() {
  // What is queued reads buffers that go away with this object.
  device_.Synchronize(stream_.get()).IgnoreError();
  device_.Synchronize(copies_.get()).IgnoreError();
  for (const GraphTag graph : graphs_) device_.DestroyGraph(graph);
}

Status DeviceStepRunner::Allocate() {
  const Program& program = parts_.plan->program;
  int buffers = sections_.schedule.buffers;
  if (parts_.plan->ranks > 1) reduce_buffer_ = buffers++;
  ASSIGN_OR_RETURN(memory_, RankMemory::Allocate(&device_, program,
                                                 {.grad_buffers = buffers,
                                                  .train_input_sets = kSets * lanes(),
                                                  .scratch_bytes = sections_.scratch_bytes}));
  ASSIGN_OR_RETURN(state_, HostState::Make(&device_, &memory_));
  RETURN_IF_ERROR(stream_.Make(&device_));
  RETURN_IF_ERROR(copies_.Make(&device_));
  for (int set = 0; set < kSets; ++set) {
    RETURN_IF_ERROR(loaded_[set].Make(&device_));
    RETURN_IF_ERROR(used_[set].Make(&device_));
  }
  ASSIGN_OR_RETURN(ring_,
                   AllocatePinned(&device_, kDepth * sizeof(StepSlot), &recorded_.pinned_bytes));
  ASSIGN_OR_RETURN(control_,
                   AllocatePinned(&device_, sizeof(StepControl), &recorded_.pinned_bytes));
  ASSIGN_OR_RETURN(gate_, AllocateZeroed(&device_, sizeof(int32_t)));
  for (int slot = 0; slot < kDepth * lanes(); ++slot) {
    staging_.emplace_back();
    for (const InputSlot& input : program.inputs) {
      ASSIGN_OR_RETURN(Buffer buffer,
                       AllocatePinned(&device_, input.meta.bytes(), &recorded_.pinned_bytes));
      staging_.back().push_back(std::move(buffer));
    }
  }
  launcher_.stream = stream_.get();
  launcher_.scratch = memory_.scratch();
  launcher_.device_step = memory_.step();
  launcher_.gate = static_cast<const int32_t*>(gate_.data());
  launcher_.device = &device_;
  launcher_.trace = parts_.trace;
  if (parts_.trace != nullptr) {
    labels_ = {.request = parts_.trace->AddPart("stop request"),
               .clear = parts_.trace->AddPart("clear request"),
               .reduce = parts_.trace->AddPart("all-reduce"),
               .check = parts_.trace->AddPart("gate"),
               .finish = parts_.trace->AddPart("finish step")};
    parts_.trace->EndsStep(labels_.finish);
  }
  return absl::OkStatus();
}

Status DeviceStepRunner::StoreState(int64_t next_step) {
  RETURN_IF_ERROR(state_.Store(stream_.get()));
  const int64_t before = next_step - 1;
  RETURN_IF_ERROR(device_.Copy(memory_.step(), &before, sizeof(before), stream_.get()));
  RETURN_IF_ERROR(device_.Synchronize(stream_.get()));
  return sections_.refresh.Run(memory_.Bases(0, RankMemory::Slots::kTrain), launcher_,
                               {parts_.seed, 0, 0});
}

Status DeviceStepRunner::AddBuffers(int into, int from) {
  SpaceBases bases;
  bases.inputs = {memory_.grad(into), memory_.grad(from)};
  return sections_.add.Run(bases, launcher_, StepState{});
}

Status DeviceStepRunner::QueueReduce(int* buffer) {
  const Plan& plan = *parts_.plan;
  const int64_t count = GradElements(plan.program);
  const int first = sections_.schedule.nodes[0].buffer;
  const auto* control = static_cast<const StepControl*>(control_.data());
  RETURN_IF_ERROR(
      Check(SetFloat(memory_.grad(first) + count - 1, &control->request, stream_.get().handle),
            "passing on a stop request"));
  Ran(labels_.request);
  *buffer = first;
  if (plan.ranks == 1) return absl::OkStatus();
  if (plan.reduce == ReduceMode::kRing) {
    for (size_t i = 1; i < sections_.schedule.nodes.size(); ++i)
      RETURN_IF_ERROR(AddBuffers(first, sections_.schedule.nodes[i].buffer));
  }
  *buffer = reduce_buffer_;
  std::vector<comm::Partial> partials;
  RETURN_IF_ERROR(parts_.device_comm->Launch(ReduceCall(&partials), stream_.get(),
                                             Deadline::After(parts_.collective_timeout)));
  Ran(labels_.reduce);
  return absl::OkStatus();
}

// The all-reduce of a step; `partials` is what it refers to.
comm::CollectiveCall DeviceStepRunner::ReduceCall(std::vector<comm::Partial>* partials) const {
  const Plan& plan = *parts_.plan;
  comm::CollectiveCall call;
  call.kind = comm::Kind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = GradElements(plan.program);
  call.recv = memory_.grad(reduce_buffer_);
  call.label = "gradients";
  if (plan.reduce == ReduceMode::kOrdered) {
    call.order = comm::Order::kOrdered;
    call.lanes = plan.lanes;
    for (const HeldNode& held : sections_.schedule.nodes)
      partials->push_back({held.node, memory_.grad(held.buffer)});
    call.partials = *partials;
  } else {
    call.order = comm::Order::kRing;
    call.send = memory_.grad(sections_.schedule.nodes[0].buffer);
  }
  return call;
}

// Everything that one step runs on the step stream.
Status DeviceStepRunner::QueueStep(int set) {
  const Program& program = parts_.plan->program;
  const int64_t tail = GradElements(program) - 1;
  for (int i = 0; i < lanes(); ++i) {
    const LaneStep& lane = sections_.schedule.steps[static_cast<size_t>(i)];
    const SpaceBases bases =
        memory_.Bases(lane.buffer, RankMemory::Slots::kTrain, set * lanes() + i);
    RETURN_IF_ERROR(sections_.train.Run(bases, launcher_, {parts_.seed, 0, lane.lane * rows()}));
    if (lanes() > 1) {
      RETURN_IF_ERROR(
          device_.Fill(memory_.grad(lane.buffer) + tail, 0, sizeof(float), stream_.get()));
      Ran(labels_.clear);
    }
    for (const BufferAdd& add : lane.adds) RETURN_IF_ERROR(AddBuffers(add.into, add.from));
  }
  int buffer = 0;
  RETURN_IF_ERROR(QueueReduce(&buffer));
  const float* stats = memory_.grad(buffer) + program.flat_elements;
  auto* gate = static_cast<int32_t*>(gate_.data());
  const auto* control = static_cast<const StepControl*>(control_.data());
  RETURN_IF_ERROR(Check(
      CheckStep(stats, stats_.loss, stats_.count, &control->poison, gate, stream_.get().handle),
      "checking the step"));
  Ran(labels_.check);
  RETURN_IF_ERROR(sections_.update.Run(memory_.Bases(buffer, RankMemory::Slots::kTrain), launcher_,
                                       {parts_.seed, 0, 0}));
  RETURN_IF_ERROR(
      Check(FinishStep(stats, stat_count_, stats + stat_count_, gate, memory_.step(),
                       static_cast<StepSlot*>(ring_.data()), kDepth, stream_.get().handle),
            "finishing the step"));
  Ran(labels_.finish);
  return absl::OkStatus();
}

Status DeviceStepRunner::Record(int set) {
  if (parts_.trace != nullptr) parts_.trace->BeginCapture();
  RETURN_IF_ERROR(device_.BeginCapture(stream_.get()));
  const Status queued = QueueStep(set);
  StatusOr<GraphTag> graph = device_.EndCapture(stream_.get());
  RETURN_IF_ERROR(queued);
  RETURN_IF_ERROR(graph.status());
  graphs_[set] = *graph;
  recorded_.graph_nodes = graph->nodes;
  ++recorded_.captures;
  return absl::OkStatus();
}

// Before the first step: the device's counter, and both graphs.
Status DeviceStepRunner::Begin(int64_t step) {
  RETURN_IF_ERROR(device_.Copy(memory_.step(), &step, sizeof(step), stream_.get()));
  RETURN_IF_ERROR(device_.Synchronize(stream_.get()));
  if (parts_.plan->ranks > 1) {
    std::vector<comm::Partial> partials;
    RETURN_IF_ERROR(parts_.device_comm->Reserve(ReduceCall(&partials)));
  }
  const absl::Duration begin = RealClock().Monotonic();
  for (int set = 0; set < kSets; ++set) RETURN_IF_ERROR(Record(set));
  recorded_.capture_time += RealClock().Monotonic() - begin;
  submitted_ = confirmed_ = step;
  return absl::OkStatus();
}

Status DeviceStepRunner::LoadInputs(int64_t step) {
  const Plan& plan = *parts_.plan;
  const int set = static_cast<int>(step % kSets);
  const int slot = static_cast<int>(step % kDepth);
  RETURN_IF_ERROR(device_.Wait(copies_.get(), used_[set].get()));
  for (int i = 0; i < lanes(); ++i) {
    const std::vector<Buffer>& staging = staging_[static_cast<size_t>(slot * lanes() + i)];
    std::vector<void*> into;
    for (const Buffer& buffer : staging) into.push_back(buffer.data());
    const int64_t first_row = sections_.schedule.steps[static_cast<size_t>(i)].lane * rows();
    {
      const HostSpan span(parts_.trace, "data");
      LoadSamples(*parts_.dataset, SampleKind::kTrain, plan.program.inputs, into,
                  step * plan.batch + first_row, rows());
    }
    const SpaceBases bases = memory_.Bases(0, RankMemory::Slots::kTrain, set * lanes() + i);
    for (size_t k = 0; k < staging.size(); ++k) {
      RETURN_IF_ERROR(device_.Copy(bases.inputs[k], staging[k].data(),
                                   static_cast<int64_t>(staging[k].bytes()), copies_.get()));
    }
  }
  RETURN_IF_ERROR(device_.Record(loaded_[set].get(), copies_.get()));
  return device_.Wait(stream_.get(), loaded_[set].get());
}

Status DeviceStepRunner::Submit(int64_t step, float request) {
  if (submitted_ < 0) RETURN_IF_ERROR(Begin(step));
  if (step != submitted_ || step - confirmed_ >= kDepth) {
    return Internal("step ", step, " submitted out of order");
  }
  auto* control = static_cast<StepControl*>(control_.data());
  *const_cast<volatile float*>(&control->request) = request;
  RETURN_IF_ERROR(LoadInputs(step));
  const int set = static_cast<int>(step % kSets);
  RETURN_IF_ERROR(device_.LaunchGraph(graphs_[set], stream_.get()));
  RETURN_IF_ERROR(device_.Record(used_[set].get(), stream_.get()));
  ++submitted_;
  return absl::OkStatus();
}

// Polls, since the wait must end when a peer is lost or the device fails: neither writes the slot.
StatusOr<const StepSlot*> DeviceStepRunner::WaitForSlot(int64_t step) {
  const auto* slot = static_cast<const StepSlot*>(ring_.data()) + step % kDepth;
  const Deadline deadline = Deadline::After(parts_.collective_timeout);
  constexpr int kSpins = 2000;
  for (int64_t i = 0;; ++i) {
    if (__atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) == static_cast<uint64_t>(step) + 1)
      return slot;
    if (i < kSpins) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(10));
    if (i % 64 != 0) continue;
    const StatusOr<bool> alive = device_.Done(used_[step % kSets].get());
    RETURN_IF_ERROR(alive.status());
    if (parts_.device_comm != nullptr) RETURN_IF_ERROR(parts_.device_comm->Health());
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "step ", step, " did not end within ", absl::FormatDuration(parts_.collective_timeout)));
    }
  }
}

StatusOr<StepResult> DeviceStepRunner::Confirm() {
  if (confirmed_ >= submitted_) return Internal("no step was submitted");
  const int64_t step = confirmed_;
  ASSIGN_OR_RETURN(const StepSlot* const slot, WaitForSlot(step));
  ++confirmed_;
  StepResult result;
  result.loss = slot->stats[stats_.loss] / slot->stats[stats_.count];
  result.requests = slot->requests;
  switch (slot->gate) {
    case kGateOpen:
      return result;
    case kGatePoisoned:
      return Aborted("step ", step, " was given up: a member of the group was lost");
    default:
      return NotFinite(step, result.loss, slot->stats[stats_.count]);
  }
}

StatusOr<EvalSums> DeviceStepRunner::Evaluate() {
  const Plan& plan = *parts_.plan;
  const Program& program = plan.program;
  const EvalShare share = EvalShareOf(parts_);
  const int64_t stat_bytes = stat_count_ * static_cast<int64_t>(sizeof(float));
  if (eval_stats_.data() == nullptr) {
    ASSIGN_OR_RETURN(eval_stats_,
                     AllocatePinned(&device_, std::max<int64_t>(1, share.share * stat_bytes),
                                    &recorded_.pinned_bytes));
  }
  std::vector<Buffer> staging;
  std::vector<void*> into;
  int64_t staging_bytes = 0;  // gone after this evaluation
  for (const InputSlot& input : program.eval_inputs) {
    ASSIGN_OR_RETURN(Buffer buffer, AllocatePinned(&device_, input.meta.bytes(), &staging_bytes));
    into.push_back(buffer.data());
    staging.push_back(std::move(buffer));
  }
  const SpaceBases bases = memory_.Bases(0, RankMemory::Slots::kEval);
  auto* stats = static_cast<float*>(eval_stats_.data());
  for (int64_t group = share.begin; group < share.end; ++group) {
    const int64_t first = group * plan.eval_batch;
    LoadSamples(*parts_.dataset, SampleKind::kEval, program.eval_inputs, into, first,
                plan.eval_batch);
    for (size_t k = 0; k < staging.size(); ++k) {
      RETURN_IF_ERROR(device_.Copy(bases.inputs[k], staging[k].data(),
                                   static_cast<int64_t>(staging[k].bytes()), stream_.get()));
    }
    RETURN_IF_ERROR(sections_.evaluate.Run(bases, launcher_, {parts_.seed, 0, first}));
    RETURN_IF_ERROR(device_.Copy(stats + (group - share.begin) * stat_count_, bases.stats,
                                 stat_bytes, stream_.get()));
    // The staging buffers are filled again.
    RETURN_IF_ERROR(device_.Synchronize(stream_.get()));
  }
  std::vector<float> mine(stats, stats + share.share * stat_count_);
  return GatherEval(parts_, share, mine);
}

}  // namespace

StatusOr<std::unique_ptr<StepRunner>> MakeDeviceStepRunner(const StepParts& parts) {
  ASSIGN_OR_RETURN(StepSections sections, StepSections::Bind(parts));
  auto runner = std::make_unique<DeviceStepRunner>(parts, std::move(sections));
  RETURN_IF_ERROR(runner->Allocate());
  return std::unique_ptr<StepRunner>(std::move(runner));
}

}  // namespace weft
