// Coordinator: how a job gets its gang and what becomes of it.
#include <algorithm>
#include <utility>

#include "google/protobuf/util/time_util.h"

#include "fabric/base/error_detail.h"
#include "fabric/base/log.h"
#include "fabric/wire/auth.h"
#include "fabric/wire/status_proto.h"
#include "server/coordinator.h"
#include "server/lease/gang_policy.h"
#include "server/queue/fifo.h"
#include "server/state/job_state.h"

namespace weft {
namespace {

// Pages of the descriptor that are never touched cost nothing, so this only has to be enough.
constexpr int64_t kSharedBytesPerRank = int64_t{64} << 20;
constexpr absl::Duration kLostWorkerPoll = absl::Milliseconds(50);

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

int32_t MinRanks(const v1::JobSpec& spec) { return std::max(spec.ranks().min(), 1); }
int32_t MaxRanks(const v1::JobSpec& spec) { return std::max(spec.ranks().max(), MinRanks(spec)); }

}  // namespace

// ---- Starting.

std::string Coordinator::CheckpointPath(const v1::JobSpec& spec) const {
  if (!spec.checkpoint().path().empty()) return spec.checkpoint().path();
  return absl::StrCat(options_.checkpoint_root, "/", spec.name().empty() ? "job" : spec.name());
}

int32_t Coordinator::FreeSlotsLocked(const state::Worker& worker) {
  if (worker.sink == nullptr) return 0;
  return worker.facts.slots() - leases_.Used(worker.facts.worker()) -
         static_cast<int32_t>(worker.ending.size());
}

std::string Coordinator::WhyHeldLocked(const state::JobRecord& record) {
  const std::string& id = record.job.id();
  if (const auto it = awaited_.find(id); it != awaited_.end()) {
    const bool patient = options_.clock->Monotonic() - opened_at_ < options_.return_grace;
    for (const std::string& name : it->second) {
      const state::Worker* worker = workers_.Find(name);
      if (worker == nullptr && patient) {
        return absl::StrCat("waits for worker ", name, ", which may still run its ranks");
      }
      if (worker == nullptr) continue;
      for (const auto& [job, generation, rank] : worker->ending) {
        if (job == id) return absl::StrCat("waits for its earlier rank ", rank, " to end");
      }
    }
    awaited_.erase(it);
  }
  if (record.job.spec().has_sample()) return "";
  for (const auto& [other, gang] : gangs_) {
    const state::JobRecord* running = jobs_->Find(other);
    if (!running->job.spec().has_sample() &&
        CheckpointPath(running->job.spec()) == CheckpointPath(record.job.spec())) {
      return absl::StrCat("waits for job ", other, ", which uses the same checkpoint folder");
    }
  }
  return "";
}

std::optional<Coordinator::Launch> Coordinator::PickNextLocked() {
  std::vector<const state::JobRecord*> records;
  std::vector<queue::WaitingJob> waiting;
  for (const state::JobRecord* record : jobs_->Unfinished()) {
    if (record->job.state() != v1::JOB_STATE_QUEUED || gangs_.contains(record->job.id())) continue;
    records.push_back(record);
    waiting.push_back({.id = record->job.id(),
                       .min_ranks = MinRanks(record->job.spec()),
                       .max_ranks = MaxRanks(record->job.spec()),
                       .held = WhyHeldLocked(*record)});
  }
  queue::Slots slots;
  for (const auto& [id, worker] : workers_.all()) {
    if (worker.sink != nullptr) slots.total += worker.facts.slots();
    slots.free += std::max(FreeSlotsLocked(worker), 0);
  }
  queue::Turn turn = queue::NextJob(waiting, slots);
  std::optional<Launch> start;
  if (turn.next.has_value()) {
    start = PlaceLocked(*records[*turn.next]);
    if (!start.has_value()) {
      turn.reasons[*turn.next] = absl::StrCat("waits for ", waiting[*turn.next].min_ranks,
                                              " free slots on one worker (transport shm)");
    }
  }
  for (size_t i = 0; i < records.size(); ++i) {
    const std::string& reason = turn.reasons[i];
    if (reason.empty() || reason == records[i]->job.reason()) continue;
    jobs_->SetReason(waiting[i].id, reason);
    LOG_INFO("job waits id={} reason={}", waiting[i].id, reason);
    NoteLocked(waiting[i].id, reason);
  }
  return start;
}

std::optional<Coordinator::Launch> Coordinator::PlaceLocked(const state::JobRecord& record) {
  std::vector<lease::FreeSlots> free;
  for (const auto& [id, worker] : workers_.all()) free.push_back({id, FreeSlotsLocked(worker)});
  const v1::JobSpec& spec = record.job.spec();
  const auto spread =
      spec.transport() == v1::TRANSPORT_SHM ? lease::Spread::kOneWorker : lease::Spread::kAnywhere;
  const std::vector<std::string> placed =
      lease::PlaceGang(MinRanks(spec), MaxRanks(spec), spread, std::move(free));
  if (placed.empty()) return std::nullopt;

  state::JobRecord next = record;
  next.job.set_state(v1::JOB_STATE_PREPARING);
  next.job.clear_startup();
  next.job.set_reason(absl::StrCat("starts on ", placed.size(), " ranks"));
  next.job.set_ranks(static_cast<int32_t>(placed.size()));
  *next.job.mutable_start_time() = ToTimestamp(options_.clock->Now());
  next.workers = placed;
  next.workers.erase(std::unique(next.workers.begin(), next.workers.end()), next.workers.end());
  if (const Status stored = ChangeStateLocked(next); !stored.ok()) {
    LOG_ERROR("job not started id={} error={}", next.job.id(), stored.ToString());
    return std::nullopt;
  }

  Gang& gang = gangs_[next.job.id()];
  gang.job = next.job.id();
  gang.generation = next.job.generation();
  gang.members = MakeMembers(placed);
  gang.placed_at = gang.submitted_at = options_.clock->Monotonic();
  if (const auto it = submitted_.find(gang.job); it != submitted_.end()) {
    const Submitted& submitted = it->second;
    gang.submitted_at = submitted.asked_at;
    gang.before_members = {MakePhase("admit", submitted.stored_at - submitted.asked_at),
                           MakePhase("queue", gang.placed_at - submitted.stored_at)};
    submitted_.erase(it);
  }
  for (size_t r = 0; r < placed.size(); ++r) {
    leases_.Grant(gang.job, gang.generation, static_cast<int32_t>(r), placed[r]);
  }
  Launch start;
  start.job = gang.job;
  start.generation = gang.generation;
  start.spec = next.job.spec();
  start.ranks = static_cast<int32_t>(placed.size());
  for (const std::string& worker : next.workers) {
    start.workers.push_back(workers_.Find(worker)->facts);
  }
  if (next.has_numerics) start.numerics = next.numerics;
  return start;
}

void Coordinator::StartGangLocked(const Launch& start, StatusOr<v1::Plan> plan) {
  const auto it = gangs_.find(start.job);
  // It may have been cancelled, or have lost a worker, while it was planned.
  if (it == gangs_.end() || it->second.generation != start.generation ||
      it->second.phase != GangPhase::kPlanning) {
    return;
  }
  Gang& gang = it->second;
  StatusOr<v1::Transport> transport = ResolveTransport(start.spec.transport(), gang.members);
  Status status = plan.ok() ? transport.status() : plan.status();
  if (status.ok()) {
    state::JobRecord next = *jobs_->Find(start.job);
    next.numerics = plan->numerics();
    next.has_numerics = true;
    *next.job.mutable_estimate() = plan->estimate();
    gang.spec.set_resume(next.resume || start.spec.checkpoint().resume() == v1::RESUME_NEWEST);
    status = jobs_->Update(next);
  }
  if (!status.ok()) {
    EndGangLocked(gang, {.state = v1::JOB_STATE_FAILED,
                         .reason = std::string(status.message()),
                         .error = status,
                         .result = std::nullopt});
    return;
  }
  gang.transport = *transport;
  gang.secret = wire::MakeSecret();
  *gang.spec.mutable_spec() = start.spec;
  *gang.spec.mutable_plan() = *std::move(plan);
  gang.spec.set_checkpoint_path(CheckpointPath(start.spec));
  gang.phase = GangPhase::kOpening;
  gang.before_members.push_back(MakePhase("plan", options_.clock->Monotonic() - gang.placed_at));
  SendAllLocked(gang, [&](int32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return StartCommandLocked(gang, rank);
  });
}

v1::MemberCommand Coordinator::StartCommandLocked(const Gang& gang, int32_t rank) {
  const GangMember& member = gang.members[rank];
  v1::MemberCommand command;
  v1::StartMember* start = command.mutable_start();
  *start->mutable_spec() = gang.spec;
  *start->mutable_spec()->mutable_member() = gang.IdOf(rank);
  int32_t threads = gang.spec.spec().threads();
  if (const state::Worker* worker = workers_.Find(member.worker); threads == 0 && worker) {
    threads = std::max(worker->facts.cores() / std::max(leases_.Used(member.worker), 1), 1);
  }
  start->mutable_spec()->set_threads(std::max(threads, 1));
  start->set_local_index(member.local_index);
  start->set_local_count(member.local_count);
  if (gang.transport == v1::TRANSPORT_SHM && gang.members.size() > 1) {
    start->set_shared_memory_bytes(kSharedBytesPerRank * static_cast<int64_t>(gang.members.size()));
  }
  return command;
}

v1::MemberCommand Coordinator::PrepareCommand(const Gang& gang, int32_t rank) const {
  v1::MemberCommand command;
  *command.mutable_prepare()->mutable_member() = gang.IdOf(rank);
  v1::PrepareRequest* request = command.mutable_prepare()->mutable_request();
  for (const GangMember& m : gang.members) request->add_endpoints(m.opened->endpoint());
  request->set_secret(gang.secret);
  request->set_transport(gang.transport);
  return command;
}

void Coordinator::SendAllLocked(const Gang& gang,
                                const std::function<v1::MemberCommand(int32_t)>& make) {
  for (size_t r = 0; r < gang.members.size(); ++r) {
    workers_.Send(gang.members[r].worker, make(static_cast<int32_t>(r)));
  }
}

// ---- What members say.

Gang* Coordinator::FindGangLocked(const v1::MemberId& member) {
  const auto it = gangs_.find(member.job());
  if (it == gangs_.end() || it->second.generation != member.generation() || member.rank() < 0 ||
      static_cast<size_t>(member.rank()) >= it->second.members.size()) {
    return nullptr;
  }
  return &it->second;
}

void Coordinator::OnOpenedLocked(Gang& gang, int32_t rank, const v1::OpenedMember& m) {
  GangMember& member = gang.members[rank];
  if (gang.phase != GangPhase::kOpening || member.opened.has_value()) return;
  if (m.has_error()) {
    ObserveLocked(gang, {.seen = recovery::Seen::kError,
                         .rank = rank,
                         .worker = member.worker,
                         .error = wire::FromProto(m.error())});
    return;
  }
  member.opened = m.opened();
  if (!gang.AllOpened()) return;
  if (const Status same = CheckSameData(gang); !same.ok()) {
    EndGangLocked(gang, {.state = v1::JOB_STATE_FAILED,
                         .reason = std::string(same.message()),
                         .error = same,
                         .result = std::nullopt});
    return;
  }
  gang.phase = GangPhase::kPreparing;
  SendAllLocked(gang, [&](int32_t r) { return PrepareCommand(gang, r); });
}

void Coordinator::OnPreparedLocked(Gang& gang, int32_t rank, const v1::PreparedMember& m) {
  GangMember& member = gang.members[rank];
  if (gang.phase != GangPhase::kPreparing || member.prepared.has_value()) return;
  if (m.has_error()) {
    ObserveLocked(gang, {.seen = recovery::Seen::kError,
                         .rank = rank,
                         .worker = member.worker,
                         .error = wire::FromProto(m.error())});
    return;
  }
  member.prepared = m.prepared();
  if (!gang.AllPrepared()) return;
  Status status = CheckSameStart(gang);
  if (status.ok()) {
    state::JobRecord next = *jobs_->Find(gang.job);
    next.job.set_state(v1::JOB_STATE_RUNNING);
    const int64_t step = member.prepared->start_step();
    next.job.set_reason(step > 0 ? absl::StrCat("continues after step ", step) : "runs");
    next.job.set_step(step);
    // From here on a new generation must not begin from the start again.
    next.resume = true;
    status = ChangeStateLocked(std::move(next));
  }
  if (!status.ok()) {
    EndGangLocked(gang, {.state = v1::JOB_STATE_FAILED,
                         .reason = std::string(status.message()),
                         .error = status,
                         .result = std::nullopt});
    return;
  }
  gang.phase = GangPhase::kRunning;
  SendAllLocked(gang, [&](int32_t r) {
    v1::MemberCommand command;
    *command.mutable_run()->mutable_member() = gang.IdOf(r);
    return command;
  });
}

void Coordinator::OnReportLocked(Gang& gang, int32_t rank, const v1::ExecutorReport& r) {
  GangMember& member = gang.members[rank];
  if (gang.phase != GangPhase::kRunning) return;
  if (r.has_failed()) {
    ObserveLocked(gang, {.seen = recovery::Seen::kError,
                         .rank = rank,
                         .worker = member.worker,
                         .step = member.step,
                         .error = wire::FromProto(r.failed())});
    return;
  }
  if (r.has_finished()) member.finished = r.finished();
  if (r.has_stopped()) member.stopped = r.stopped();
  if (r.has_progress()) member.step = std::max(member.step, r.progress().step());
  if (r.has_startup()) return OnStartedLocked(gang, rank, r.startup());
  if (r.has_counters()) {
    v1::JobEvent event = MakeEventLocked(gang.job);
    *event.mutable_counters() = r.counters();
    event.mutable_counters()->set_rank(rank);
    return AppendEventLocked(gang.job, std::move(event), /*durable=*/false);
  }
  // All ranks report the same of the rest; one of them speaks for the job.
  if (rank != 0) return;
  if (r.has_progress()) {
    jobs_->SetProgress(gang.job, r.progress().step(), r.progress().loss());
    v1::JobEvent event = MakeEventLocked(gang.job);
    *event.mutable_progress() = r.progress();
    AppendEventLocked(gang.job, std::move(event), /*durable=*/false);
  } else if (r.has_eval()) {
    v1::JobEvent event = MakeEventLocked(gang.job);
    *event.mutable_eval() = r.eval();
    AppendEventLocked(gang.job, std::move(event), /*durable=*/true);
  } else if (r.has_checkpoint()) {
    v1::JobEvent event = MakeEventLocked(gang.job);
    *event.mutable_checkpoint() = r.checkpoint();
    AppendEventLocked(gang.job, std::move(event), /*durable=*/true);
  }
}

void Coordinator::OnStartedLocked(const Gang& gang, int32_t rank, const v1::StartUp& said) {
  const v1::StartUp merged =
      MergeStartUp(gang, rank, said, options_.clock->Monotonic() - gang.submitted_at);
  jobs_->AddStartUp(gang.job, merged);
  v1::JobEvent event = MakeEventLocked(gang.job);
  *event.mutable_startup() = merged;
  AppendEventLocked(gang.job, std::move(event), /*durable=*/true);
}

void Coordinator::OnExitedLocked(Gang& gang, int32_t rank, const v1::MemberExited& m) {
  GangMember& member = gang.members[rank];
  if (member.exited) return;
  member.step = std::max(member.step, m.last_step());
  const bool ending = gang.phase == GangPhase::kEnding;
  const bool clean = m.exit_code() == 0 && m.signal() == 0 &&
                     (member.finished.has_value() || member.stopped.has_value());
  recovery::Observation exit{.seen = recovery::Seen::kExited,
                             .rank = rank,
                             .worker = member.worker,
                             .step = member.step,
                             .error = wire::FromProto(m.error()),
                             .exit_code = m.exit_code(),
                             .signal = m.signal(),
                             .out_of_memory = m.out_of_memory()};
  for (const recovery::Observation& before : gang.failures) {
    // What it reported tells as much as what its worker remembers.
    if (exit.error.ok() && before.rank == rank) exit.error = before.error;
  }
  ReleaseMemberLocked(gang, rank);
  // The release of an ended gang's last member drops the gang.
  if (ending) return;
  if (!clean) {
    ObserveLocked(gang, std::move(exit));
  } else if (gang.AllExited()) {
    OnAllExitedLocked(gang);
  }
}

void Coordinator::OnAllExitedLocked(Gang& gang) {
  if (!gang.failures.empty()) {
    ConcludeFailureLocked(gang);
    return;
  }
  Outcome outcome{.state = v1::JOB_STATE_DONE,
                  .reason = "finished",
                  .error = absl::OkStatus(),
                  .result = MergeResults(gang)};
  if (!gang.members.front().finished.has_value()) {
    if (gang.stop.has_value()) {
      outcome.state = v1::JOB_STATE_CANCELLED;
      outcome.reason = absl::StrCat("cancelled after step ", outcome.result->steps());
    } else {
      outcome.state = v1::JOB_STATE_FAILED;
      outcome.reason = absl::StrCat("its worker was shut down after step ", outcome.result->steps(),
                                    "; submit it again with checkpoint.resume: newest to continue");
      outcome.error = Unavailable(outcome.reason);
    }
  }
  EndGangLocked(gang, std::move(outcome));
}

// ---- How it ends.

void Coordinator::ObserveLocked(Gang& gang, recovery::Observation o) {
  if (gang.phase == GangPhase::kEnding) return;
  if (o.step < 0 && gang.phase == GangPhase::kRunning) o.step = jobs_->Find(gang.job)->job.step();
  LOG_INFO("member failed job={} generation={} rank={} signal={} exit_code={} error={}", gang.job,
           gang.generation, o.rank, o.signal, o.exit_code, o.error.ToString());
  const bool decisive = recovery::IsDecisive(o);
  gang.failures.push_back(std::move(o));
  if (decisive) {
    ConcludeFailureLocked(gang);
  } else {
    gang.conclude_at =
        std::min(gang.conclude_at, options_.clock->Monotonic() + options_.cause_grace);
  }
}

bool Coordinator::AwaitsLostWorkerLocked(const Gang& gang) {
  const absl::Duration now = options_.clock->Monotonic();
  for (const GangMember& m : gang.members) {
    if (m.exited) continue;
    const state::Worker* worker = workers_.Find(m.worker);
    if (worker == nullptr || worker->sink == nullptr) return true;
    absl::MutexLock lock(&beats_mu_);
    const auto beat = beats_.find(m.worker);
    if (beat != beats_.end() && now - beat->second.at > options_.heartbeat_timeout / 2) return true;
  }
  return false;
}

void Coordinator::ConcludeFailureLocked(Gang& gang) {
  const bool decisive =
      std::any_of(gang.failures.begin(), gang.failures.end(), recovery::IsDecisive);
  if (!decisive && AwaitsLostWorkerLocked(gang)) {
    // A silent worker is a better cause than "peer is gone", and is found out soon.
    gang.conclude_at = options_.clock->Monotonic() + kLostWorkerPoll;
    return;
  }
  const Status cause = recovery::TrueCause({gang.job, gang.generation}, gang.failures);
  Outcome outcome{.state = v1::JOB_STATE_FAILED,
                  .reason = std::string(cause.message()),
                  .error = cause,
                  .result = std::nullopt};
  if (gang.stop == v1::STOP_MODE_STOP) {
    outcome.state = v1::JOB_STATE_CANCELLED;
    outcome.reason = absl::StrCat("cancelled; while it stopped: ", cause.message());
  }
  EndGangLocked(gang, std::move(outcome));
}

void Coordinator::EndGangLocked(Gang& gang, Outcome outcome) {
  const std::string job = gang.job;
  const bool started = gang.phase != GangPhase::kPlanning;
  gang.phase = GangPhase::kEnding;
  gang.conclude_at = absl::InfiniteDuration();
  gang.stop_by = absl::InfiniteDuration();
  if (started) {
    // Also to those that exited: it tells their worker that their end has arrived here.
    for (size_t r = 0; r < gang.members.size(); ++r) {
      SendEndLocked(gang.members[r].worker, gang.IdOf(static_cast<int32_t>(r)), outcome.reason);
    }
  }
  if (!StoreOutcomeLocked(job, outcome)) unstored_[job] = std::move(outcome);
  const int32_t ranks = static_cast<int32_t>(gang.members.size());
  const bool all_exited = gang.AllExited();
  if (all_exited) {
    gangs_.erase(job);
    NotifyLocked(job);
  } else if (!started) {
    // No member exists; the last release drops the gang.
    for (int32_t r = 0; r < ranks; ++r) ReleaseMemberLocked(gang, r);
  }
  Wake();
}

bool Coordinator::StoreOutcomeLocked(const std::string& job, const Outcome& outcome) {
  state::JobRecord next = *jobs_->Find(job);
  if (state::IsTerminal(next.job.state())) return true;
  next.job.set_state(outcome.state);
  next.job.set_reason(outcome.reason);
  *next.job.mutable_end_time() = ToTimestamp(options_.clock->Now());
  if (!outcome.error.ok()) *next.job.mutable_error() = wire::ToProto(outcome.error);
  if (outcome.result.has_value()) {
    *next.job.mutable_result() = *outcome.result;
    next.job.set_step(std::max(next.job.step(), outcome.result->steps()));
    if (outcome.result->steps() > 0) next.job.set_loss(outcome.result->final_loss());
  }
  const Status stored = ChangeStateLocked(std::move(next));
  if (!stored.ok()) LOG_ERROR("job end not stored id={} error={}", job, stored.ToString());
  return stored.ok();
}

void Coordinator::ReleaseMemberLocked(Gang& gang, int32_t rank) {
  GangMember& member = gang.members[rank];
  if (member.exited) return;
  member.exited = true;
  leases_.Return(gang.job, gang.generation, rank);
  if (gang.phase == GangPhase::kEnding && gang.AllExited()) {
    const std::string job = gang.job;
    gangs_.erase(job);
    NotifyLocked(job);
    Wake();
  }
}

}  // namespace weft
