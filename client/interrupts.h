// Ctrl-C, SIGTERM and the end of the terminal as calls on a thread of its own, where anything may
// be done.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace weft {

// One a process, made before other threads: it blocks SIGINT, SIGTERM and SIGHUP in all threads
// made after it, and ignores SIGPIPE.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;

  // `handler(n)` is called for the n-th signal, from 1. Without a handler the first signal ends the
  // process with exit code 130, as does a third one whatever the handler does.
  void SetHandler(std::function<void(int)> handler);
  // Returns once no handler runs.
  void ClearHandler();
  int count() const;

 private:
  void Serve();

  int signal_fd_ = -1;
  int stop_fd_ = -1;
  mutable absl::Mutex mutex_;
  std::function<void(int)> handler_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Mutex count_mutex_;
  int count_ ABSL_GUARDED_BY(count_mutex_) = 0;
  std::thread thread_;
};

}  // namespace weft
