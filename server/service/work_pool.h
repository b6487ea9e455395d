// WorkPool: a few threads that run short tasks, so that no task runs on a thread of gRPC's that a
// stream needs. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace weft::service {

class WorkPool {
 public:
  WorkPool(int threads, size_t max_queued) : max_queued_(max_queued) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  // Runs what is queued, then ends the threads. No one may add any more.
  ~WorkPool();

  void Run(std::function<void()> task);
  // False, and not run, when too much is queued already.
  bool TryRun(std::function<void()> task);

 private:
  void Loop();

  const size_t max_queued_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::service
