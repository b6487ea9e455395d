#include "server/coordinator.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/util/time_util.h"

#include "fabric/base/hash.h"
#include "fabric/base/log.h"
#include "fabric/wire/status_proto.h"
#include "server/state/job_state.h"

namespace weft {
namespace {

constexpr size_t kMaxRequestIdBytes = 64;
constexpr int32_t kDefaultPage = 50;
constexpr int32_t kMaxPage = 1000;
// Event numbers are set aside on disk this many at a time, so that a restart never gives one out
// twice.
constexpr int64_t kEventBlock = 1000;
constexpr absl::Duration kTick = absl::Milliseconds(50);

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

// The same for equal specs in this build, whatever the order of map fields on the wire.
std::string HashOf(const v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&out);
  }
  Sha256 hash;
  hash.Update(bytes.data(), bytes.size());
  return hash.FinishHex();
}

StatusOr<int64_t> ParsePageToken(const std::string& token) {
  int64_t before = 0;
  if (token.size() < 2 || token[0] != 'b' || !absl::SimpleAtoi(token.substr(1), &before) ||
      before < 1) {
    return InvalidArgument("page_token '", token,
                           "' is not one of ours; leave it empty to start at the newest");
  }
  return before;
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, std::unique_ptr<state::JobTable> jobs)
    : options_(std::move(options)),
      opened_at_(options_.clock->Monotonic()),
      jobs_(std::move(jobs)),
      events_(options_.max_events_per_job),
      logs_(options_.max_log_lines_per_job) {}

StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(CoordinatorOptions options) {
  ASSIGN_OR_RETURN(auto jobs, state::JobTable::Open(options.database));
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), std::move(jobs)));
  RETURN_IF_ERROR(coordinator->Recover());
  return coordinator;
}

Coordinator::~Coordinator() {
  {
    absl::MutexLock lock(&wake_mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

Status Coordinator::Recover() {
  absl::MutexLock lock(&mu_);
  for (const state::JobRecord* record : jobs_->List(INT64_MAX, SIZE_MAX)) {
    ASSIGN_OR_RETURN(auto events, jobs_->ReadEvents(record->job.id()));
    events_.Restore(record->job.id(), std::move(events), record->event_ceiling);
  }
  for (const state::JobRecord* record : jobs_->Unfinished()) {
    if (record->job.state() == v1::JOB_STATE_QUEUED) continue;
    state::JobRecord next = *record;
    awaited_[next.job.id()] = next.workers;
    next.job.set_state(v1::JOB_STATE_QUEUED);
    next.job.set_reason("the coordinator started again; continues from the newest checkpoint");
    next.job.set_generation(next.job.generation() + 1);
    next.resume = true;
    RETURN_IF_ERROR(ChangeStateLocked(next));
    LOG_INFO("job queued again id={} generation={}", next.job.id(), next.job.generation());
  }
  return absl::OkStatus();
}

void Coordinator::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Coordinator::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&wake_mu_);
      const auto due = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(wake_mu_) { return awake_ || stopping_; };
      wake_mu_.AwaitWithTimeout(absl::Condition(&due), kTick);
      if (stopping_) return;
      awake_ = false;
    }
    Tick();
  }
}

void Coordinator::Wake() {
  absl::MutexLock lock(&wake_mu_);
  awake_ = true;
}

// ---- Jobs and events.

v1::JobEvent Coordinator::MakeEventLocked(const std::string& job) {
  v1::JobEvent event;
  event.set_sequence(events_.NextSequence(job));
  *event.mutable_time() = ToTimestamp(options_.clock->Now());
  return event;
}

void Coordinator::AppendEventLocked(const std::string& job, v1::JobEvent event, bool durable) {
  Status status;
  const state::JobRecord* record = jobs_->Find(job);
  if (record == nullptr) return;
  if (event.sequence() > record->event_ceiling) {
    state::JobRecord next = *record;
    next.event_ceiling = event.sequence() + kEventBlock;
    status = jobs_->Update(next, durable ? &event : nullptr);
  } else if (durable) {
    status = jobs_->AddEvent(job, event);
  }
  if (!status.ok()) LOG_ERROR("event not stored job={} error={}", job, status.ToString());
  const int64_t first = events_.FirstKept(job);
  events_.Append(job, std::move(event));
  if (const int64_t kept = events_.FirstKept(job); durable && kept > first && first > 0) {
    jobs_->DropEventsBelow(job, kept).IgnoreError();
  }
  NotifyLocked(job);
}

void Coordinator::NoteLocked(const std::string& job, const std::string& note) {
  v1::JobEvent event = MakeEventLocked(job);
  event.set_note(note);
  AppendEventLocked(job, std::move(event), /*durable=*/false);
}

Status Coordinator::ChangeStateLocked(state::JobRecord next) {
  const std::string id = next.job.id();
  v1::JobEvent event = MakeEventLocked(id);
  event.mutable_state()->set_state(next.job.state());
  event.mutable_state()->set_reason(next.job.reason());
  next.event_ceiling = std::max(next.event_ceiling, event.sequence() + kEventBlock);
  RETURN_IF_ERROR(jobs_->Update(next, &event));
  events_.Append(id, std::move(event));
  LOG_INFO("job state id={} state={} generation={} reason={}", id, state::NameOf(next.job.state()),
           next.job.generation(), next.job.reason());
  NotifyLocked(id);
  return absl::OkStatus();
}

void Coordinator::NotifyLocked(const std::string& job) {
  const auto it = subscribers_.find(job);
  if (it == subscribers_.end()) return;
  for (const auto& [id, wake] : it->second) wake();
}

StatusOr<const state::JobRecord*> Coordinator::FindLocked(const std::string& id) {
  if (id.empty()) return InvalidArgument("job id is empty");
  const state::JobRecord* record = jobs_->Find(id);
  if (record == nullptr) return NotFound("no job '", id, "'; `weft list` shows the ids");
  return record;
}

// ---- Clients.

StatusOr<const state::JobRecord*> Coordinator::FindRequestLocked(const std::string& request_id,
                                                                 const std::string& hash) {
  if (request_id.empty()) return nullptr;
  const state::JobRecord* record = jobs_->FindRequest(request_id);
  if (record != nullptr && record->request_hash != hash) {
    return absl::AlreadyExistsError(
        absl::StrCat("request id '", request_id, "' came with another spec before, as job ",
                     record->job.id(), "; use a new request id for a new job"));
  }
  return record;
}

StatusOr<v1::Job> Coordinator::Submit(const v1::SubmitJobRequest& request) {
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return InvalidArgument("request_id has ", request.request_id().size(), " bytes, at most ",
                           kMaxRequestIdBytes, " are allowed");
  }
  const absl::Duration asked_at = options_.clock->Monotonic();
  const std::string hash = HashOf(request.spec());
  if (!request.validate_only()) {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const auto* known, FindRequestLocked(request.request_id(), hash));
    if (known != nullptr) return known->job;
  }
  state::JobRecord record;
  ASSIGN_OR_RETURN(*record.job.mutable_spec(), options_.planning.admit(request.spec()));
  // With no worker in view: a job may come before the workers that will run it.
  const std::vector<v1::Registration> nobody;
  ASSIGN_OR_RETURN(const v1::Plan plan,
                   options_.planning.plan({.spec = record.job.spec(), .workers = nobody}));
  *record.job.mutable_estimate() = plan.estimate();
  record.job.set_state(v1::JOB_STATE_QUEUED);
  record.job.set_reason("admitted");
  record.job.set_generation(1);
  *record.job.mutable_create_time() = ToTimestamp(options_.clock->Now());
  if (request.validate_only()) return record.job;

  record.request_id = request.request_id();
  record.request_hash = hash;
  record.event_ceiling = kEventBlock;
  v1::Job accepted;
  {
    absl::MutexLock lock(&mu_);
    // The same request may have come in while this one was planned.
    ASSIGN_OR_RETURN(const auto* known, FindRequestLocked(request.request_id(), hash));
    if (known != nullptr) return known->job;
    v1::JobEvent event;
    event.set_sequence(1);
    *event.mutable_time() = record.job.create_time();
    event.mutable_state()->set_state(v1::JOB_STATE_QUEUED);
    event.mutable_state()->set_reason(record.job.reason());
    ASSIGN_OR_RETURN(const state::JobRecord* stored, jobs_->Insert(std::move(record), event));
    events_.Append(stored->job.id(), std::move(event));
    accepted = stored->job;
    submitted_[accepted.id()] = {asked_at, options_.clock->Monotonic()};
  }
  LOG_INFO("job admitted id={}", accepted.id());
  Wake();
  return accepted;
}

StatusOr<v1::Plan> Coordinator::Plan(const v1::PlanJobRequest& request) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, options_.planning.admit(request.spec()));
  if (request.ranks() < 0) return InvalidArgument("ranks ", request.ranks(), " is negative");
  std::vector<v1::Registration> workers;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, worker] : workers_.all()) workers.push_back(worker.facts);
  }
  return options_.planning.plan({.spec = spec, .ranks = request.ranks(), .workers = workers});
}

StatusOr<v1::Job> Coordinator::Get(const std::string& id) {
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const state::JobRecord* record, FindLocked(id));
  return record->job;
}

StatusOr<v1::ListJobsResponse> Coordinator::List(const v1::ListJobsRequest& request) {
  if (request.page_size() < 0) {
    return InvalidArgument("page_size ", request.page_size(), " is negative");
  }
  int64_t before = INT64_MAX;
  if (!request.page_token().empty()) {
    ASSIGN_OR_RETURN(before, ParsePageToken(request.page_token()));
  }
  const size_t size = static_cast<size_t>(
      request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage));
  v1::ListJobsResponse response;
  absl::MutexLock lock(&mu_);
  // One more than asked for tells whether there is another page.
  const auto page = jobs_->List(before, size + 1);
  for (size_t i = 0; i < std::min(size, page.size()); ++i) *response.add_jobs() = page[i]->job;
  if (page.size() > size) {
    response.set_next_page_token(absl::StrCat("b", page[size - 1]->number));
  }
  return response;
}

StatusOr<v1::Job> Coordinator::Cancel(const std::string& id, v1::StopMode mode) {
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const state::JobRecord* record, FindLocked(id));
  if (state::IsTerminal(record->job.state())) {
    return FailedPrecondition("job ", id, " has ended: ", state::NameOf(record->job.state()));
  }
  const auto it = gangs_.find(id);
  if (it == gangs_.end() || it->second.phase == GangPhase::kEnding) {
    state::JobRecord next = *record;
    next.job.set_state(v1::JOB_STATE_CANCELLED);
    next.job.set_reason("cancelled while it waited");
    submitted_.erase(id);
    *next.job.mutable_end_time() = ToTimestamp(options_.clock->Now());
    RETURN_IF_ERROR(ChangeStateLocked(std::move(next)));
    return jobs_->Find(id)->job;
  }
  Gang& gang = it->second;
  if (gang.phase != GangPhase::kRunning) {
    EndGangLocked(gang, {.state = v1::JOB_STATE_CANCELLED,
                         .reason = "cancelled before its first step",
                         .error = absl::OkStatus(),
                         .result = std::nullopt});
    Wake();
    return jobs_->Find(id)->job;
  }
  const bool save = mode == v1::STOP_MODE_SAVE_AND_STOP;
  if (!gang.stop.has_value() || save) {
    gang.stop = mode;
    gang.stop_by = options_.clock->Monotonic() + (save ? options_.save_grace : options_.stop_grace);
    SendAllLocked(gang, [&](int32_t rank) {
      v1::MemberCommand command;
      *command.mutable_stop()->mutable_member() = gang.IdOf(rank);
      command.mutable_stop()->set_mode(mode);
      return command;
    });
    jobs_->SetReason(id, save ? "cancelling: stops after its step, with a checkpoint"
                              : "cancelling: stops after its step");
    NoteLocked(id, record->job.reason());
  }
  return record->job;
}

v1::ListWorkersResponse Coordinator::ListWorkers() {
  v1::ListWorkersResponse response;
  const absl::Duration now = options_.clock->Monotonic();
  absl::MutexLock lock(&mu_);
  for (const auto& [id, worker] : workers_.all()) {
    v1::WorkerView* view = response.add_workers();
    view->set_id(id);
    view->set_host(worker.facts.host());
    view->set_slots(worker.facts.slots());
    view->set_slots_used(leases_.Used(id) + static_cast<int32_t>(worker.ending.size()));
    view->set_cpu(worker.facts.cpu());
    view->set_version(worker.facts.version());
    view->set_device(worker.facts.device());
    absl::MutexLock beats_lock(&beats_mu_);
    if (const auto beat = beats_.find(id); beat != beats_.end()) {
      view->set_heartbeat_age_s(absl::ToDoubleSeconds(now - beat->second.at));
    }
  }
  return response;
}

StatusOr<Coordinator::EventPage> Coordinator::ReadEvents(const std::string& id, int64_t after,
                                                         size_t limit) {
  if (after < 0) return InvalidArgument("after_sequence ", after, " is negative");
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const state::JobRecord* record, FindLocked(id));
  EventPage page;
  page.events = events_.ReadAfter(id, after, limit);
  page.ended = page.events.size() < limit && state::IsTerminal(record->job.state());
  return page;
}

StatusOr<Coordinator::LogPage> Coordinator::ReadLogs(const std::string& id, int32_t rank,
                                                     int64_t after, size_t limit) {
  absl::MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const state::JobRecord* record, FindLocked(id));
  LogPage page;
  page.lines = logs_.ReadAfter(id, rank, after, limit);
  // Members that are not reaped yet may still have lines on their way.
  page.ended =
      page.lines.size() < limit && state::IsTerminal(record->job.state()) && !gangs_.contains(id);
  return page;
}

StatusOr<int64_t> Coordinator::FindLogTail(const std::string& id, int32_t rank, int64_t tail) {
  if (tail < 0) return InvalidArgument("tail ", tail, " is negative");
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(FindLocked(id).status());
  return logs_.BeforeTail(id, rank, tail);
}

int64_t Coordinator::Subscribe(const std::string& id, std::function<void()> wake) {
  absl::MutexLock lock(&mu_);
  const int64_t subscription = next_subscription_++;
  subscribers_[id][subscription] = std::move(wake);
  subscriptions_[subscription] = id;
  return subscription;
}

void Coordinator::Unsubscribe(int64_t subscription) {
  absl::MutexLock lock(&mu_);
  const auto it = subscriptions_.find(subscription);
  if (it == subscriptions_.end()) return;
  auto& of_job = subscribers_[it->second];
  of_job.erase(subscription);
  if (of_job.empty()) subscribers_.erase(it->second);
  subscriptions_.erase(it);
}

}  // namespace weft
