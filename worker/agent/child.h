// Child: one executor process, started by re-executing this program. Owns the process: it is
// killed, with whatever it started, and reaped when the object goes. Lines of its output and its
// end are reported from the object's own thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/base/status.h"

namespace weft::agent {

struct ChildExit {
  int exit_code = 0;  // meaningful when signal is 0
  int signal = 0;
  bool out_of_memory = false;  // the kernel's count of such kills rose while it lived
};

struct ChildOptions {
  std::vector<std::string> argv;             // argv[0] is the program
  int socket_fd = -1;                        // becomes descriptor 3 there
  int shared_memory_fd = -1;                 // becomes descriptor 4 there, when it is not negative
  std::function<void(std::string)> on_line;  // stdout and stderr, long lines cut
  std::function<void(ChildExit)> on_exit;    // once, after the last line
};

inline constexpr int kChildSocketFd = 3;
inline constexpr int kChildSharedMemoryFd = 4;
inline constexpr size_t kMaxLineBytes = 8 << 10;

class Child {
 public:
  // Does not take the descriptors. Unavailable or ResourceExhausted when no process could be made.
  static StatusOr<std::unique_ptr<Child>> Start(ChildOptions options);
  // Kills, waits for the end, which is still reported. Not from a callback.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // SIGKILL to it and what it started. Thread-safe; no effect after its end.
  void Kill();
  pid_t pid() const { return pid_; }

 private:
  Child(pid_t pid, int pid_fd, int output, ChildOptions options);
  void Watch(int output);
  ChildExit Reap();

  const pid_t pid_;
  const int pid_fd_;
  const int64_t oom_kills_before_;
  const ChildOptions options_;
  std::thread watcher_;
};

}  // namespace weft::agent
