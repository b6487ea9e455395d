// A coordinator and a worker on this machine for the length of one command: child processes in a
// private folder, all gone when this object is.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

#include "client/child_process.h"
#include "client/client.h"
#include "fabric/base/clock.h"
#include "fabric/base/status.h"

namespace weft {

struct LocalClusterOptions {
  std::string programs;            // folder of weft-coordinator and weft-worker
  std::string checkpoint_root;     // absolute; empty: in the private folder
  std::string temporary = "/tmp";  // where the private folder is made
  int slots = 1;                   // ranks that may run
  std::string log_level = "info";
  absl::Duration start_limit = absl::Seconds(30);
  absl::Duration stop_grace = absl::Seconds(10);
  // Asked while it starts; true ends that with Cancelled.
  std::function<bool()> interrupted = [] { return false; };
};

// Thread-safe: KillNow. The rest belongs to one thread.
class LocalCluster {
 public:
  // Returns once the worker has registered. NotFound: a program is not in `programs`; Unavailable:
  // one ended at once, with its last lines; DeadlineExceeded.
  static StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalClusterOptions& options);
  // Worker, then coordinator: SIGTERM, the grace, SIGKILL; then the folder is removed.
  ~LocalCluster();

  Client& client() { return *client_; }
  // Unavailable when one of the two ended: how, and its last lines.
  Status Check();
  // Ends all processes at once, without saving.
  void KillNow();

 private:
  explicit LocalCluster(const LocalClusterOptions& options) : options_(options) {}
  std::string StateDir() const { return folder_ + "/state"; }
  Status StartCoordinator();
  // OK while there is reason to wait on for `program`.
  Status KeepWaiting(const Deadline& deadline, const char* program);
  Status StartWorker();
  Status WaitForWorker();
  std::string LastLines(const std::string& program) const;

  const LocalClusterOptions options_;
  std::string folder_;
  int lock_fd_ = -1;
  std::unique_ptr<ChildProcess> coordinator_;
  std::unique_ptr<ChildProcess> worker_;
  std::unique_ptr<Client> client_;
};

}  // namespace weft
