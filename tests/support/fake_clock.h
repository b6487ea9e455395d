// FakeClock: time that moves only when a test moves it. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"

namespace weft::testing {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::FromUnixSeconds(1'000'000'000)) : now_(now) {}

  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  absl::Duration Monotonic() override {
    absl::MutexLock lock(&mutex_);
    return elapsed_;
  }
  // Both clocks go on.
  void Advance(absl::Duration d) {
    absl::MutexLock lock(&mutex_);
    now_ += d;
    elapsed_ += d;
  }
  // Somebody sets the wall clock, as time servers do; the monotonic one does not notice.
  void SetWall(absl::Time now) {
    absl::MutexLock lock(&mutex_);
    now_ = now;
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
  absl::Duration elapsed_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
};

}  // namespace weft::testing
