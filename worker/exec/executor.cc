#include "worker/exec/executor.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/ckpt/manifest.h"
#include "worker/core/device/cpu_device.h"
#include "worker/exec/sampler.h"

namespace weft {
namespace {

// What ranks add up to agree on an end; far apart, so that sums over ranks do not run into each
// other.
constexpr float kStopRequest = 1;
constexpr float kSaveRequest = 65536;

constexpr int64_t kMostLosses = 10'000;  // in a result
// For the last writes of a run that just ended or was killed.
constexpr absl::Duration kClaimWait = absl::Seconds(5);
constexpr absl::Duration kReportInterval = absl::Milliseconds(200);

double Milliseconds(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

float RequestOf(StopMode mode) {
  return mode == StopMode::kStop ? kStopRequest : mode == StopMode::kSaveAndStop ? kSaveRequest : 0;
}

// High-water mark of the resident set; getrusage's figure would count what the parent had before
// exec.
int64_t PeakMemoryBytes() {
  // procfs reports a size of zero, so the usual whole-file read does not do.
  FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return static_cast<int64_t>(kib) * 1024;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Gathers the steps between two reports.
class ProgressMeter {
 public:
  ProgressMeter(int64_t of, int64_t tokens_per_step) : tokens_per_step_(tokens_per_step) {
    report_.of = of;
    last_ = RealClock().Monotonic();
  }
  void Add(int64_t step, float loss) {
    report_.step = step;
    report_.loss = loss;
    report_.losses.push_back(loss);
  }
  bool Due() const {
    return !report_.losses.empty() && RealClock().Monotonic() - last_ >= kReportInterval;
  }
  ProgressReport Take() {
    const absl::Duration now = RealClock().Monotonic();
    const double steps = static_cast<double>(report_.losses.size());
    report_.step_ms = Milliseconds(now - last_) / steps;
    report_.tokens_per_s = static_cast<double>(tokens_per_step_) * 1e3 / report_.step_ms;
    last_ = now;
    ProgressReport report = report_;
    report_.losses.clear();
    return report;
  }
  bool empty() const { return report_.losses.empty(); }

 private:
  int64_t tokens_per_step_;
  ProgressReport report_;
  absl::Duration last_;
};

int64_t TokensPerStep(const Plan& plan) {
  for (const InputSlot& slot : plan.program.inputs) {
    if (slot.name == "tokens") return slot.meta.elements() * plan.lanes;
  }
  return plan.batch;
}

}  // namespace

Executor::Executor(ExecSpec spec)
    : spec_(std::move(spec)), startup_(&RealClock(), spec_.started), checkpoints_(&spec_) {}
Executor::~Executor() = default;

Status Executor::OpenDevice() {
  const Numerics& numerics = spec_.plan.numerics;
  if (numerics.device == "cpu") {
    RETURN_IF_ERROR(UseInstructionSet(numerics.instruction_set));
    device_ = MakeCpuDevice();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(device_, MakeCudaDevice(spec_.device_index));
  const DeviceInfo info = device_->info();
  if (info.model != numerics.device) {
    return FailedPrecondition("the plan is for ", numerics.device, ", cuda:", spec_.device_index,
                              " is ", info.model, ": another model gives other bits");
  }
  // The first call that needs a context makes it: here, so that the time is counted here.
  ASSIGN_OR_RETURN(const StreamTag stream, device_->CreateStream());
  device_->DestroyStream(stream);
  return absl::OkStatus();
}

StatusOr<Executor::Opened> Executor::Open(const std::string& host) {
  RETURN_IF_ERROR(OpenDevice());
  tiles_ = MakeThreadPool(std::max(1, spec_.threads));
  startup_.End("device");
  Opened opened;
  ASSIGN_OR_RETURN(listener_, comm::TcpListener::Open(host));
  opened.endpoint = listener_->endpoint();
  if (const auto* text = std::get_if<data::TextOptions>(&spec_.data)) {
    ASSIGN_OR_RETURN(dataset_, data::OpenText(*text));
  } else if (const auto* reverse = std::get_if<data::ReverseOptions>(&spec_.data)) {
    ASSIGN_OR_RETURN(dataset_, data::OpenReverse(*reverse));
  } else if (const auto* tokens = std::get_if<data::TokenOptions>(&spec_.data)) {
    ASSIGN_OR_RETURN(dataset_, data::OpenTokens(*tokens));
  } else if (const auto* cifar10 = std::get_if<data::Cifar10Options>(&spec_.data)) {
    ASSIGN_OR_RETURN(dataset_, data::OpenCifar10(*cifar10));
  } else if (!spec_.sample.has_value()) {
    return InvalidArgument("data: the job has none");
  }
  if (dataset_ != nullptr) {
    opened.data_digest = dataset_->digest();
    if (dataset_->tokenizer() != nullptr) checkpoints_.Keep(dataset_->tokenizer()->table());
  }
  RETURN_IF_ERROR(ClaimCheckpoints());
  startup_.End("data");
  return opened;
}

// Before the first step, so that no training is lost to a folder that takes no checkpoint.
Status Executor::ClaimCheckpoints() {
  if (spec_.rank != 0 || spec_.sample.has_value()) return absl::OkStatus();
  StatusOr<ckpt::FolderClaim> claim = ckpt::FolderClaim::Take(spec_.checkpoint.path, kClaimWait);
  if (!claim.ok()) return Annotate(claim.status(), "checkpoints cannot be kept");
  claim_ = *std::move(claim);
  if (spec_.checkpoint.resume) return absl::OkStatus();
  // Among an earlier run's checkpoints this one's could not be told from them, nor be kept.
  ASSIGN_OR_RETURN(const auto earlier, ckpt::ListCheckpoints(spec_.checkpoint.path));
  if (earlier.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      spec_.checkpoint.path, " has ", earlier.size(),
      " checkpoint(s) of an earlier run; go on from the newest with checkpoint.resume: newest, or "
      "write elsewhere with another name or checkpoint.path"));
}

Status Executor::Join(const Group& group) {
  const int32_t size = spec_.plan.ranks;
  if (size == 1) {
    comm_ = comm::MakeLoopback();
    return absl::OkStatus();
  }
  comm::GroupSpec spec;
  spec.rank = spec_.rank;
  spec.size = size;
  spec.secret = group.secret;
  spec.endpoints = group.endpoints;
  spec.shared_memory_fd = group.shared_memory_fd;
  spec.deadline = Deadline::After(absl::Seconds(30));
  StatusOr<std::unique_ptr<comm::Communicator>> joined =
      group.transport == Transport::kTcp ? comm::JoinTcp(spec, std::move(listener_))
                                         : comm::JoinSharedMemory(spec);
  if (!joined.ok()) return Annotate(joined.status(), "joining the group");
  comm_ = comm::MakeChecked(*std::move(joined));
  if (device_->id().kind != DeviceKind::kCuda) return absl::OkStatus();
  StatusOr<std::unique_ptr<NcclCommunicator>> device_joined =
      JoinNcclOver(comm_.get(), device_.get(), spec.deadline);
  if (!device_joined.ok()) return Annotate(device_joined.status(), "joining the GPUs");
  device_comm_ = *std::move(device_joined);
  return absl::OkStatus();
}

StatusOr<Executor::Prepared> Executor::Prepare(const Group& group) {
  Prepared prepared;
  if (spec_.sample.has_value()) return prepared;
  startup_.End("wait");
  RETURN_IF_ERROR(Join(group));
  startup_.End("communicator");
  StepParts parts;
  parts.plan = &spec_.plan;
  parts.rank = spec_.rank;
  parts.seed = spec_.seed;
  parts.device = device_.get();
  parts.kernels = &BuiltinKernels();
  parts.tiles = tiles_.get();
  parts.comm = comm_.get();
  parts.device_comm = device_comm_.get();
  parts.dataset = dataset_.get();
  if (spec_.profile.has_value()) MakeTrace();
  parts.trace = trace_.get();
  ASSIGN_OR_RETURN(runner_, StepRunner::Create(parts));
  prepared.memory_bytes = runner_->memory().total_bytes();
  startup_.End("bind");
  RETURN_IF_ERROR(StartState(&prepared));
  startup_.End("state");
  return prepared;
}

void Executor::MakeTrace() {
  TracedRank rank;
  rank.job = spec_.job_name;
  rank.rank = spec_.rank;
  rank.on_cpu = device_->id().kind == DeviceKind::kCpu;
  rank.device = rank.on_cpu ? "cpu" : device_->info().model;
  if (!rank.on_cpu) rank.ceilings = CudaCeilings(device_->id().index);
  trace_ =
      std::make_unique<StepTrace>(std::move(rank), *spec_.profile, &BuiltinOpSet(), &RealClock());
}

// The parameters' first values, or those of the newest checkpoint.
Status Executor::StartState(Prepared* prepared) {
  if (spec_.checkpoint.resume) {
    std::vector<std::string> skipped;
    StatusOr<ckpt::CheckpointInfo> newest = ckpt::NewestVerified(spec_.checkpoint.path, &skipped);
    for (const std::string& s : skipped) LOG_WARN("checkpoint skipped reason=\"{}\"", s);
    if (newest.ok()) {
      ASSIGN_OR_RETURN(losses_, RestoreState(*newest, spec_, &runner_->state()));
      RETURN_IF_ERROR(runner_->StoreState(newest->manifest.step));
      last_checkpoint_ = newest->path;
      prepared->start_step = newest->manifest.step;
      LOG_INFO("resumed step={} from={}", prepared->start_step, newest->path);
      return absl::OkStatus();
    }
    if (!absl::IsNotFound(newest.status())) return newest.status();
  }
  RETURN_IF_ERROR(InitializeParameters(spec_.plan.program, spec_.seed, BuiltinKernels(),
                                       tiles_.get(), runner_->state().param()));
  return runner_->StoreState(0);
}

void Executor::Stop(StopMode mode) {
  stop_ = mode;
  if (mode != StopMode::kAbort) return;
  aborted_ = true;
  if (comm_ != nullptr) comm_->Abort(Aborted("the job was stopped"));
  if (device_comm_ != nullptr) device_comm_->Abort(Aborted("the job was stopped"));
}

StatusOr<RunResult> Executor::Run(const ReportSink& report) {
  return spec_.sample.has_value() ? Sample() : Train(report);
}

StatusOr<RunResult> Executor::Sample() {
  RunResult result;
  const absl::Duration begin = RealClock().Monotonic();
  ASSIGN_OR_RETURN(result.text, SampleText(spec_, BuiltinKernels(), tiles_.get(), aborted_));
  result.train_seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
  result.peak_memory_bytes = PeakMemoryBytes();
  return result;
}

Status Executor::Evaluate(int64_t step, const ReportSink& report, EvalReport* last) {
  if (dataset_->eval_samples() == 0) return absl::OkStatus();
  const HostSpan span(trace_.get(), "evaluation", StepTrace::Keep::kAlways);
  ASSIGN_OR_RETURN(const EvalSums sums, runner_->Evaluate());
  if (sums.count == 0) return absl::OkStatus();
  *last = {step, sums.loss / sums.count, sums.correct / sums.count,
           static_cast<int64_t>(sums.count)};
  if (spec_.rank == 0) report(*last);
  return absl::OkStatus();
}

void Executor::ReportWritten(const ReportSink& report) {
  for (const CheckpointReport& written : checkpoints_.TakeWritten()) {
    last_checkpoint_ = written.path;
    report(written);
  }
}

Status Executor::Save(int64_t step, const ReportSink& report) {
  if (spec_.rank != 0) return absl::OkStatus();  // every rank has the same state
  const HostSpan span(trace_.get(), "checkpoint", StepTrace::Keep::kAlways);
  RETURN_IF_ERROR(runner_->FetchState());
  RETURN_IF_ERROR(checkpoints_.Save(step, runner_->state(), losses_));
  ReportWritten(report);
  return absl::OkStatus();
}

Status Executor::CheckDigest(const std::string& digest) {
  const int32_t ranks = spec_.plan.ranks;
  if (ranks == 1) return absl::OkStatus();
  std::string all(digest.size() * static_cast<size_t>(ranks), '\0');
  comm::CollectiveCall call;
  call.kind = comm::Kind::kAllGather;
  call.dtype = DType::kU8;
  call.count = static_cast<int64_t>(all.size());
  call.send = digest.data();
  call.recv = all.data();
  call.label = "digest";
  RETURN_IF_ERROR(comm_->Launch(call, StreamTag{}, Deadline::After(absl::Minutes(1))));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::string theirs = all.substr(static_cast<size_t>(rank) * digest.size(), digest.size());
    if (theirs != digest) {
      return DataLoss("rank ", rank, " ended with state ", theirs, ", rank ", spec_.rank, " with ",
                      digest,
                      ": memory or a kernel went wrong on one of them; the last checkpoint before "
                      "this is sound only "
                      "if both agree on it");
    }
  }
  return absl::OkStatus();
}

// Keeps as many steps in flight as the runner allows, up to `limit`, and waits for the oldest.
StatusOr<StepResult> Executor::NextStep(int64_t* submitted, int64_t limit) {
  const int64_t confirmed = static_cast<int64_t>(losses_.size());
  while (*submitted < std::min(limit, confirmed + runner_->depth())) {
    const StopMode mode = stop_.load();
    if (mode == StopMode::kAbort) return Aborted("the job was stopped");
    const HostSpan span(trace_.get(), "submit");
    RETURN_IF_ERROR(runner_->Submit((*submitted)++, RequestOf(mode)));
  }
  const HostSpan span(trace_.get(), "confirm");
  return runner_->Confirm();
}

// Where steps in flight must have ended: before an evaluation, a checkpoint, the end, and where a
// profile begins and ends.
int64_t Executor::NextPause(int64_t step) const {
  int64_t pause = spec_.steps;
  for (const int64_t every : {spec_.eval_every, spec_.checkpoint.every}) {
    if (every > 0) pause = std::min(pause, (step / every + 1) * every);
  }
  for (const int64_t at : {traced_.begin, traced_.end}) {
    if (at > step) pause = std::min(pause, at);
  }
  return pause;
}

void Executor::ReportStarted(const ReportSink& report) {
  startup_.End("first step");
  startup_.Split("first step", "capture", runner_->counters().capture_time);
  report(StartUpReport{startup_.phases()});
}

void Executor::ReportCounters(const ReportSink& report) {
  CountersReport counters;
  counters.step = static_cast<int64_t>(losses_.size());
  counters.runner = runner_->counters();
  counters.host_peak_bytes = PeakMemoryBytes();
  int64_t free = 0, total = 0;
  const bool on_device = device_->id().kind != DeviceKind::kCpu;
  if (on_device && device_->MemoryInUse(&free, &total).ok()) {
    counters.device_used_bytes = total - free;
  }
  report(counters);
}

// After `step` confirmed steps.
Status Executor::TraceStep(int64_t step) {
  if (trace_ == nullptr) return absl::OkStatus();
  trace_->Confirmed();
  if (step != traced_.end) return absl::OkStatus();
  trace_->Stop(step);
  return trace_->Write();
}

StatusOr<RunResult> Executor::Train(const ReportSink& report) {
  RunResult result;
  startup_.End("wait");
  result.tokens_per_step = TokensPerStep(spec_.plan);
  ProgressMeter meter(spec_.steps, result.tokens_per_step);
  std::vector<double> step_ms;
  const bool reports = spec_.rank == 0;
  const absl::Duration begin = RealClock().Monotonic();
  const int64_t first = static_cast<int64_t>(losses_.size());
  int64_t step = first;
  int64_t submitted = step, last = spec_.steps;
  bool save_at_end = true;
  absl::Duration step_begin = begin;
  if (trace_ != nullptr) traced_ = StepTrace::WindowOf(*spec_.profile, first, spec_.steps);
  while (step < last) {
    if (trace_ != nullptr && step == traced_.begin) trace_->Start(step);
    ASSIGN_OR_RETURN(const StepResult done, NextStep(&submitted, std::min(last, NextPause(step))));
    losses_.push_back(done.loss);
    if (step++ == first) {
      ReportStarted(report);
      ReportCounters(report);
    }
    const absl::Duration now = RealClock().Monotonic();
    step_ms.push_back(Milliseconds(now - step_begin));
    step_begin = now;
    RETURN_IF_ERROR(TraceStep(step));
    if (reports) {
      meter.Add(step, done.loss);
      if (meter.Due()) report(meter.Take());
    }
    if (done.requests > 0 && !result.stopped) {
      // Every rank sees this sum after the same step, and none has submitted more than this.
      last = std::min(NextPause(step - 1), step - 1 + runner_->depth());
      result.stopped = last < spec_.steps;
      save_at_end = !result.stopped || done.requests >= kSaveRequest;
    }
    if (step == last) break;
    if (spec_.eval_every > 0 && step % spec_.eval_every == 0) {
      RETURN_IF_ERROR(Evaluate(step, report, &result.eval));
    }
    if (spec_.checkpoint.every > 0 && step % spec_.checkpoint.every == 0)
      RETURN_IF_ERROR(Save(step, report));
    if (step == NextPause(step - 1)) step_begin = RealClock().Monotonic();
  }
  result.train_seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
  if (trace_ != nullptr) trace_->Stop(step);
  if (reports && !meter.empty()) report(meter.Take());
  if (!result.stopped) RETURN_IF_ERROR(Evaluate(step, report, &result.eval));
  if (save_at_end) RETURN_IF_ERROR(Save(step, report));
  RETURN_IF_ERROR(runner_->FetchState());
  result.state_digest = StateDigest(spec_.plan.program, runner_->state(), losses_);
  RETURN_IF_ERROR(CheckDigest(result.state_digest));
  RETURN_IF_ERROR(checkpoints_.Wait());
  ReportWritten(report);
  if (step > first) ReportCounters(report);
  if (trace_ != nullptr) {
    // Once more, with the evaluations and checkpoints that came later.
    RETURN_IF_ERROR(trace_->Write());
    result.profile = trace_->folder();
  }
  result.steps = step;
  if (!losses_.empty()) {
    result.first_loss = losses_.front();
    result.final_loss = losses_.back();
    result.losses_every = 1 + (std::ssize(losses_) - 1) / kMostLosses;
    for (size_t i = 0; i < losses_.size(); i += static_cast<size_t>(result.losses_every)) {
      result.losses.push_back(losses_[i]);
    }
  }
  result.median_step_ms = Median(std::move(step_ms));
  result.peak_memory_bytes = PeakMemoryBytes();
  result.checkpoint = last_checkpoint_;
  return result;
}

}  // namespace weft
