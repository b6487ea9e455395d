// Agent: the daemon of one node: registers with its slots, starts members as told, reaps them,
// ships what they say, and ends them when it ends. Owns no tensor. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/member_api.pb.h"
#include "worker/agent/coordinator_address.h"
#include "worker/agent/heartbeat.h"
#include "worker/agent/member.h"
#include "worker/agent/member_stream.h"
#include "worker/agent/outbox.h"

namespace weft::agent {

struct AgentOptions {
  CoordinatorSource coordinator;
  v1::Registration facts;  // without worker, incarnation and members: the agent makes those
  std::string program;     // this program's path, for executors
  std::string log_level = "info";
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration coordinator_lost = absl::Minutes(10);
};

class Agent {
 public:
  explicit Agent(AgentOptions options);
  // Kills what still runs.
  ~Agent();

  // Starts nothing any more, asks running members to save and stop and kills the others, and waits
  // up to `grace` for them and for their reports to be sent.
  void SaveAndStop(absl::Duration grace);
  // Kills all members. For when no one is left to tell.
  void KillMembers();

  const std::string& worker() const { return facts_.worker(); }

 private:
  using Key = std::tuple<std::string, int64_t, int32_t>;

  v1::Registration MakeRegistration();
  void OnRegistered();
  void OnCommand(const v1::MemberCommand& command);
  void StartMember(const v1::StartMember& start);
  void EndMember(const v1::EndMember& end);
  // Drops members that were ended and have exited.
  void ForgetDoomed();
  // The descriptor that the members of one generation here share; made by the first, closed after
  // the last.
  int32_t LeastUsedGpuLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<int> SharedMemoryLocked(const v1::MemberId& member, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropSharedMemoryLocked(const v1::MemberId& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Member> Find(const v1::MemberId& member);
  std::vector<std::shared_ptr<Member>> All();
  void RefuseMember(const v1::MemberId& member, const Status& why);
  void WatchCoordinator();

  const AgentOptions options_;
  v1::Registration facts_;
  Outbox outbox_;
  absl::Mutex mu_;
  std::map<Key, std::shared_ptr<Member>> members_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int64_t>, int> shared_memory_ ABSL_GUARDED_BY(mu_);
  std::set<Key> doomed_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<MemberStream> stream_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::thread watcher_;
};

}  // namespace weft::agent
