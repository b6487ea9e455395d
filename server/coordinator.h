// Coordinator: admits, plans, queues, leases, and follows every job to its end. Owns all of the
// server's state; services translate and call it.
//
// Thread-safe. One mutex, held over decisions and their durable write, never over planning and
// never while waiting for a worker: commands are queued on their sinks. Heartbeats have a mutex of
// their own (taken after the first where both are held), so that a slow disk does not look like a
// silent worker.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "proto/client_api.pb.h"
#include "proto/member_api.pb.h"
#include "server/gang.h"
#include "server/lease/lease_table.h"
#include "server/planning.h"
#include "server/state/event_log.h"
#include "server/state/job_table.h"
#include "server/state/log_store.h"
#include "server/state/worker_table.h"

namespace weft {

struct CoordinatorOptions {
  std::string database;         // path
  std::string checkpoint_root;  // folder
  std::string cluster = "weft";
  std::string opset_digest;  // a worker with another one is refused; empty: any
  absl::Duration heartbeat_timeout = absl::Seconds(2);
  // How long a better cause is waited for when a member only says that a peer is gone.
  absl::Duration cause_grace = absl::Milliseconds(300);
  // How long a cancelled job may take to stop, and to stop with a checkpoint.
  absl::Duration stop_grace = absl::Seconds(10);
  absl::Duration save_grace = absl::Seconds(120);
  // How long a job that had members when the coordinator ended waits for their workers to come
  // back.
  absl::Duration return_grace = absl::Seconds(10);
  size_t max_events_per_job = 10000;
  size_t max_log_lines_per_job = 10000;
  Clock* clock = &RealClock();  // not owned
  Planning planning;
};

class Coordinator {
 public:
  // Opens the state and puts jobs that had members back into the queue. Codes as JobTable::Open.
  static StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  // Workers and subscribers must be gone.
  ~Coordinator();

  // Starts the thread that calls Tick. Without it (tests) the caller does.
  void Start();

  // ---- Clients.

  // Durable when it returns OK. InvalidArgument: the job is wrong; AlreadyExists: the request id
  // came with another spec before.
  StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request);
  StatusOr<v1::Plan> Plan(const v1::PlanJobRequest& request);
  StatusOr<v1::Job> Get(const std::string& id);
  StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request);
  // FailedPrecondition when the job has ended.
  StatusOr<v1::Job> Cancel(const std::string& id, v1::StopMode mode);
  v1::ListWorkersResponse ListWorkers();

  struct EventPage {
    std::vector<v1::JobEvent> events;
    bool ended = false;  // no more will come after these
  };
  StatusOr<EventPage> ReadEvents(const std::string& id, int64_t after, size_t limit);

  struct LogPage {
    std::vector<state::LogEntry> lines;
    bool ended = false;
  };
  StatusOr<LogPage> ReadLogs(const std::string& id, int32_t rank, int64_t after, size_t limit);
  // The number to read after for the last `tail` lines.
  StatusOr<int64_t> FindLogTail(const std::string& id, int32_t rank, int64_t tail);

  // Calls `wake` whenever `id` has new events or lines. It runs under the lock: it may only queue.
  int64_t Subscribe(const std::string& id, std::function<void()> wake);
  // `wake` neither runs nor will run once this returns.
  void Unsubscribe(int64_t subscription);

  // ---- Workers. `connection` is a number of the caller's, never used twice.

  // FailedPrecondition when its ops differ from ours. `sink` must live until Disconnect returns.
  Status Register(int64_t connection, const v1::Registration& facts, state::CommandSink* sink);
  void Handle(int64_t connection, const v1::MemberMessage& message);
  void Disconnect(int64_t connection);
  // False: unknown, register again.
  bool Heartbeat(const std::string& worker, int64_t incarnation);

  // Acts on what time brought, and starts jobs. One caller at a time.
  void Tick();

 private:
  struct Beat {
    int64_t incarnation = 0;
    absl::Duration at;
  };
  struct Outcome {
    v1::JobState state = v1::JOB_STATE_FAILED;
    std::string reason = {};
    Status error = {};
    std::optional<v1::JobResult> result = std::nullopt;
  };
  struct Launch {
    std::string job;
    int64_t generation = 0;
    v1::JobSpec spec;
    std::vector<v1::Registration> workers;
    std::optional<v1::Numerics> numerics;
    int32_t ranks = 0;
  };

  Coordinator(CoordinatorOptions options, std::unique_ptr<state::JobTable> jobs);
  Status Recover();
  void Loop();
  void Wake();

  // Jobs and events.
  v1::JobEvent MakeEventLocked(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendEventLocked(const std::string& job, v1::JobEvent event, bool durable)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteLocked(const std::string& job, const std::string& note)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stores `next` with its change of state as one durable event.
  Status ChangeStateLocked(state::JobRecord next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotifyLocked(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<const state::JobRecord*> FindLocked(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<const state::JobRecord*> FindRequestLocked(const std::string& request_id,
                                                      const std::string& hash)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Starting a gang.
  std::optional<Launch> PickNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Launch> PlaceLocked(const state::JobRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string WhyHeldLocked(const state::JobRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int32_t FreeSlotsLocked(const state::Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string CheckpointPath(const v1::JobSpec& spec) const;
  void StartGangLocked(const Launch& start, StatusOr<v1::Plan> plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::MemberCommand StartCommandLocked(const Gang& gang, int32_t rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::MemberCommand PrepareCommand(const Gang& gang, int32_t rank) const;

  // A gang's life. `gang` may be gone after a call that ends it.
  Gang* FindGangLocked(const v1::MemberId& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnOpenedLocked(Gang& gang, int32_t rank, const v1::OpenedMember& m)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPreparedLocked(Gang& gang, int32_t rank, const v1::PreparedMember& m)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnReportLocked(Gang& gang, int32_t rank, const v1::ExecutorReport& r)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnStartedLocked(const Gang& gang, int32_t rank, const v1::StartUp& said)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnExitedLocked(Gang& gang, int32_t rank, const v1::MemberExited& m)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAllExitedLocked(Gang& gang) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ObserveLocked(Gang& gang, recovery::Observation o) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ConcludeFailureLocked(Gang& gang) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AwaitsLostWorkerLocked(const Gang& gang) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndGangLocked(Gang& gang, Outcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StoreOutcomeLocked(const std::string& job, const Outcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseMemberLocked(Gang& gang, int32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendAllLocked(const Gang& gang, const std::function<v1::MemberCommand(int32_t)>& make)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Workers.
  void LoseWorkerLocked(const std::string& worker, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReattachLocked(const state::Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoseSilentWorkersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ConcludeDueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandleLocked(state::Worker& worker, const v1::MemberMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendEndLocked(const std::string& worker, const v1::MemberId& member,
                     const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CoordinatorOptions options_;
  absl::Duration opened_at_;

  absl::Mutex mu_ ABSL_ACQUIRED_BEFORE(beats_mu_);
  const std::unique_ptr<state::JobTable> jobs_ ABSL_PT_GUARDED_BY(mu_);
  state::EventLog events_ ABSL_GUARDED_BY(mu_);
  state::LogStore logs_ ABSL_GUARDED_BY(mu_);
  state::WorkerTable workers_ ABSL_GUARDED_BY(mu_);
  lease::LeaseTable leases_ ABSL_GUARDED_BY(mu_);
  // By job: the running generation, and after its end those of its members that are not reaped yet.
  std::map<std::string, Gang> gangs_ ABSL_GUARDED_BY(mu_);
  // Jobs that wait for the first time: when their submit came and when it was stored.
  struct Submitted {
    absl::Duration asked_at;
    absl::Duration stored_at;
  };
  std::map<std::string, Submitted> submitted_ ABSL_GUARDED_BY(mu_);
  // Ends that could not be stored; tried again at each Tick.
  std::map<std::string, Outcome> unstored_ ABSL_GUARDED_BY(mu_);
  // Jobs of an earlier coordinator: the workers that may still run their members.
  std::map<std::string, std::vector<std::string>> awaited_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::string> connections_ ABSL_GUARDED_BY(mu_);  // -> worker
  std::map<std::string, std::map<int64_t, std::function<void()>>> subscribers_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::string> subscriptions_ ABSL_GUARDED_BY(mu_);  // -> job
  int64_t next_subscription_ ABSL_GUARDED_BY(mu_) = 1;

  absl::Mutex beats_mu_;
  std::map<std::string, Beat> beats_ ABSL_GUARDED_BY(beats_mu_);

  absl::Mutex wake_mu_;
  bool awake_ ABSL_GUARDED_BY(wake_mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(wake_mu_) = false;
  std::thread thread_;
};

}  // namespace weft
