// Member: one rank of one generation on this worker: its process, the link to it, and the thread
// that takes it through open, prepare and run as the coordinator says so. Everything that it learns
// goes to the outbox. Thread-safe. Its end kills the process and waits for it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/member_api.pb.h"
#include "worker/agent/child.h"
#include "worker/agent/executor_link.h"
#include "worker/agent/outbox.h"

namespace weft::agent {

struct MemberOptions {
  v1::StartMember start;
  std::string program;  // started as `program exec --fd 3 [--shm-fd 4] --log_level L`
  std::string host;     // where its collectives listen
  std::string log_level = "info";
  int shared_memory_fd = -1;  // of the job's local members; not taken
  Outbox* outbox = nullptr;   // not owned
};

class Member {
 public:
  explicit Member(MemberOptions options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const v1::MemberId& id() const { return id_; }
  int32_t device_index() const { return options_.start.spec().device_index(); }

  // Each counts once; repeats change nothing.
  void Prepare(const v1::PrepareRequest& request);
  void Run();
  // Before it runs the same as End.
  void Stop(v1::StopMode mode);
  // Kills it.
  void End();

  // Says again what the coordinator must know, for a stream that is new.
  void Resend();
  bool exited() const;
  // True when it has exited within `limit`.
  bool WaitExited(absl::Duration limit) const;

 private:
  void Live();
  Status StartProcess();
  // Each returns false when there is nothing more to do.
  bool Open();
  bool PrepareGroup();
  void RunToEnd();
  void OnReport(v1::ExecutorReport report);
  void OnExit(ChildExit exit);
  // What a failed call says, unless the process is gone: then its exit says it better.
  std::optional<Status> ErrorToReport(const Status& status);
  void Say(v1::MemberMessage message);
  void SayExited(const ChildExit& exit);
  bool WaitChildExited(absl::Duration limit) const;

  const MemberOptions options_;
  const v1::MemberId id_;
  const absl::Duration asked_;  // monotonic
  absl::Duration forked_;       // monotonic; of the thread
  std::unique_ptr<ExecutorLink> link_;

  mutable absl::Mutex mu_;
  std::unique_ptr<Child> child_ ABSL_GUARDED_BY(mu_);
  std::optional<ChildExit> child_exit_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::PrepareRequest> prepare_ ABSL_GUARDED_BY(mu_);
  bool run_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  int64_t last_step_ ABSL_GUARDED_BY(mu_) = -1;
  v1::StatusProto said_ ABSL_GUARDED_BY(mu_);
  // In the order in which they were said.
  std::vector<v1::MemberMessage> facts_ ABSL_GUARDED_BY(mu_);
  bool exited_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace weft::agent
