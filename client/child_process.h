// A child process in a process group of its own, which ends with this object.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "fabric/base/status.h"

namespace weft {

// Not thread-safe, but for KillNow.
class ChildProcess {
 public:
  // argv[0] is the program's path. Standard input is empty; both outputs go to `output_file`. The
  // child starts with no signal blocked or ignored.
  static StatusOr<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& argv,
                                                       const std::string& output_file);
  // KillNow, and waits for the end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Waits up to `limit` for the end; "" while it runs, else how it ended: "exit code 1", "signal 9
  // (Killed)".
  std::string WaitFor(absl::Duration limit);
  // SIGTERM; waits up to `grace`; then KillNow. Returns at once when it has ended.
  void Terminate(absl::Duration grace);
  // SIGKILL to the whole group.
  void KillNow();

 private:
  ChildProcess(pid_t pid, int pid_fd) : pid_(pid), pid_fd_(pid_fd) {}
  const pid_t pid_;
  const int pid_fd_;  // readable once it has ended
  std::string ended_;
};

}  // namespace weft
