// Coordinator: workers that come, speak, and go, and what time brings.
#include <set>
#include <utility>

#include "fabric/base/log.h"
#include "server/coordinator.h"

namespace weft {

Status Coordinator::Register(int64_t connection, const v1::Registration& facts,
                             state::CommandSink* sink) {
  const std::string& id = facts.worker();
  if (id.empty() || facts.slots() < 1) {
    return InvalidArgument("a worker needs an id and at least one slot");
  }
  if (!options_.opset_digest.empty() && facts.opset_digest() != options_.opset_digest) {
    return FailedPrecondition("worker ", id, " was built with other ops than this coordinator (",
                              facts.opset_digest(), " instead of ", options_.opset_digest,
                              "); run the same build on all nodes");
  }
  {
    absl::MutexLock lock(&mu_);
    const state::Worker* known = workers_.Find(id);
    if (known != nullptr && known->facts.incarnation() != facts.incarnation()) {
      LoseWorkerLocked(id, "its worker process started anew");
    }
    state::Worker& worker = workers_.Register(facts, connection, sink);
    connections_[connection] = id;
    {
      absl::MutexLock beats_lock(&beats_mu_);
      beats_[id] = {facts.incarnation(), options_.clock->Monotonic()};
    }
    v1::MemberCommand registered;
    registered.mutable_registered()->set_cluster(options_.cluster);
    sink->Send(registered);
    ReattachLocked(worker);
  }
  LOG_INFO("worker registered id={} host={} slots={} cpu={}", id, facts.host(), facts.slots(),
           facts.cpu());
  Wake();
  return absl::OkStatus();
}

// Commands and reports may have been lost with the last stream. The worker says again what it knows
// of its members; here the commands of the running phase are said again, which a worker takes once.
void Coordinator::ReattachLocked(const state::Worker& registered) {
  const std::string id = registered.facts.worker();
  state::Worker& worker = *workers_.Find(id);
  std::set<state::MemberKey> listed;
  for (const v1::MemberId& member : worker.facts.members()) {
    listed.insert(state::KeyOf(member));
    const Gang* gang = FindGangLocked(member);
    const bool ours = gang != nullptr && gang->members[member.rank()].worker == id;
    if (!ours) {
      worker.ending.insert(state::KeyOf(member));
      SendEndLocked(id, member, "of an earlier generation");
    }
  }
  // What it no longer knows has ended.
  std::erase_if(worker.ending, [&](const auto& key) { return !listed.contains(key); });

  std::vector<std::string> jobs;
  for (const auto& [job, gang] : gangs_) jobs.push_back(job);
  for (const std::string& job : jobs) {
    const auto it = gangs_.find(job);
    if (it == gangs_.end() || it->second.phase == GangPhase::kPlanning) continue;
    for (const int32_t rank : it->second.RanksOn(id)) {
      // An observation below may end the gang, and a release may drop it.
      const auto again = gangs_.find(job);
      if (again == gangs_.end()) break;
      Gang& gang = again->second;
      const GangMember& member = gang.members[rank];
      if (member.exited) continue;
      const v1::MemberId member_id = gang.IdOf(rank);
      if (!listed.contains(state::KeyOf(member_id))) {
        const std::string at = member.worker;
        const int64_t step = member.step;
        const bool ending = gang.phase == GangPhase::kEnding;
        ReleaseMemberLocked(gang, rank);
        if (ending) continue;
        ObserveLocked(gang, {.seen = recovery::Seen::kLost,
                             .rank = rank,
                             .worker = at,
                             .step = step,
                             .error = Unavailable("its worker came back without it")});
        continue;
      }
      v1::MemberCommand command;
      if (gang.phase == GangPhase::kEnding) {
        SendEndLocked(id, member_id, "the job has ended");
      } else if (gang.phase == GangPhase::kPreparing) {
        workers_.Send(id, PrepareCommand(gang, rank));
      } else if (gang.phase == GangPhase::kRunning) {
        *command.mutable_run()->mutable_member() = member_id;
        workers_.Send(id, command);
        if (gang.stop.has_value()) {
          *command.mutable_stop()->mutable_member() = member_id;
          command.mutable_stop()->set_mode(*gang.stop);
          workers_.Send(id, command);
        }
      }
    }
  }
}

void Coordinator::Handle(int64_t connection, const v1::MemberMessage& message) {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  state::Worker* worker = workers_.Find(it->second);
  if (worker == nullptr || worker->connection != connection) return;
  HandleLocked(*worker, message);
}

void Coordinator::HandleLocked(state::Worker& worker, const v1::MemberMessage& message) {
  const std::string& id = worker.facts.worker();
  const v1::MemberId* member = nullptr;
  switch (message.kind_case()) {
    case v1::MemberMessage::kOpened:
      member = &message.opened().member();
      break;
    case v1::MemberMessage::kPrepared:
      member = &message.prepared().member();
      break;
    case v1::MemberMessage::kReport:
      member = &message.report().member();
      break;
    case v1::MemberMessage::kExited:
      member = &message.exited().member();
      break;
    case v1::MemberMessage::kLog:
      member = &message.log().member();
      break;
    default:
      return;
  }
  const state::MemberKey key = state::KeyOf(*member);
  if (message.has_exited() && worker.ending.erase(key) > 0) Wake();
  Gang* gang = FindGangLocked(*member);
  if (gang == nullptr || gang->members[member->rank()].worker != id) {
    // An older generation, or not its member: nothing that it says counts.
    const bool alive = message.has_opened() || message.has_prepared() || message.has_report();
    if (alive && worker.ending.insert(key).second) {
      LOG_WARN("stale member refused worker={} job={} generation={} rank={}", id, member->job(),
               member->generation(), member->rank());
      SendEndLocked(id, *member, "of an earlier generation");
    }
    return;
  }
  const int32_t rank = member->rank();
  switch (message.kind_case()) {
    case v1::MemberMessage::kOpened:
      return OnOpenedLocked(*gang, rank, message.opened());
    case v1::MemberMessage::kPrepared:
      return OnPreparedLocked(*gang, rank, message.prepared());
    case v1::MemberMessage::kReport:
      return OnReportLocked(*gang, rank, message.report());
    case v1::MemberMessage::kExited:
      return OnExitedLocked(*gang, rank, message.exited());
    default:
      logs_.Append(gang->job, rank, gang->generation, message.log().line());
      NotifyLocked(gang->job);
  }
}

void Coordinator::SendEndLocked(const std::string& worker, const v1::MemberId& member,
                                const std::string& reason) {
  v1::MemberCommand command;
  *command.mutable_end()->mutable_member() = member;
  command.mutable_end()->set_reason(reason);
  workers_.Send(worker, command);
}

void Coordinator::Disconnect(int64_t connection) {
  absl::MutexLock lock(&mu_);
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  state::Worker* worker = workers_.Find(it->second);
  if (worker != nullptr && worker->connection == connection) {
    worker->sink = nullptr;
    LOG_INFO("worker stream ended id={}", it->second);
  }
  connections_.erase(it);
}

bool Coordinator::Heartbeat(const std::string& worker, int64_t incarnation) {
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&beats_mu_);
  const auto it = beats_.find(worker);
  if (it == beats_.end() || it->second.incarnation != incarnation) return false;
  it->second.at = now;
  return true;
}

void Coordinator::LoseWorkerLocked(const std::string& worker, const std::string& why) {
  LOG_WARN("worker lost id={} reason={}", worker, why);
  workers_.Remove(worker);
  {
    absl::MutexLock lock(&beats_mu_);
    beats_.erase(worker);
  }
  std::vector<std::string> jobs;
  for (const auto& [job, gang] : gangs_) jobs.push_back(job);
  for (const std::string& job : jobs) {
    for (const int32_t rank : gangs_.at(job).RanksOn(worker)) {
      const auto it = gangs_.find(job);
      if (it == gangs_.end()) break;
      Gang& gang = it->second;
      const GangMember& member = gang.members[rank];
      if (member.exited) continue;
      const int64_t step = member.step;
      const bool ending = gang.phase == GangPhase::kEnding;
      ReleaseMemberLocked(gang, rank);
      if (ending) continue;
      ObserveLocked(gang, {.seen = recovery::Seen::kLost,
                           .rank = rank,
                           .worker = worker,
                           .step = step,
                           .error = Unavailable(why)});
    }
  }
}

void Coordinator::LoseSilentWorkersLocked() {
  const absl::Duration now = options_.clock->Monotonic();
  std::vector<std::string> silent;
  {
    absl::MutexLock lock(&beats_mu_);
    for (const auto& [worker, beat] : beats_) {
      if (now - beat.at > options_.heartbeat_timeout) silent.push_back(worker);
    }
  }
  for (const std::string& worker : silent) {
    LoseWorkerLocked(worker, absl::StrCat("no heartbeat of its worker for ",
                                          absl::FormatDuration(options_.heartbeat_timeout)));
  }
}

void Coordinator::ConcludeDueLocked() {
  const absl::Duration now = options_.clock->Monotonic();
  std::vector<std::string> due;
  for (const auto& [job, gang] : gangs_) {
    if (gang.conclude_at <= now || gang.stop_by <= now) due.push_back(job);
  }
  for (const std::string& job : due) {
    Gang& gang = gangs_.at(job);
    if (gang.conclude_at <= now) {
      ConcludeFailureLocked(gang);
    } else {
      Outcome outcome{.state = v1::JOB_STATE_CANCELLED,
                      .reason = "cancelled; it did not stop in time and was ended",
                      .error = absl::OkStatus(),
                      .result = std::nullopt};
      EndGangLocked(gang, std::move(outcome));
    }
  }
}

void Coordinator::Tick() {
  std::optional<Launch> start;
  {
    absl::MutexLock lock(&mu_);
    LoseSilentWorkersLocked();
    ConcludeDueLocked();
    std::erase_if(unstored_, [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return StoreOutcomeLocked(entry.first, entry.second);
    });
    start = PickNextLocked();
  }
  while (start.has_value()) {
    // Planning may take long; the world goes on meanwhile.
    StatusOr<v1::Plan> plan = options_.planning.plan(
        {.spec = start->spec,
         .ranks = start->ranks,
         .workers = start->workers,
         .numerics = start->numerics.has_value() ? &*start->numerics : nullptr});
    absl::MutexLock lock(&mu_);
    StartGangLocked(*start, std::move(plan));
    start = PickNextLocked();
  }
}

}  // namespace weft
