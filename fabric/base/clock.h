// Time as a dependency: product code asks a Clock, tests hand in a FakeClock (tests/support).
#pragma once

#include "absl/time/time.h"

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for records that people read.
  virtual absl::Time Now() = 0;
  // Never goes back; the only time that deadlines, leases and heartbeats use.
  virtual absl::Duration Monotonic() = 0;
};

// The process-wide real clock. Thread-safe, never destroyed.
Clock& RealClock();

// A point on the monotonic clock by which something must have ended.
class Deadline {
 public:
  static Deadline After(absl::Duration d) {
    return Deadline(d == absl::InfiniteDuration() ? d : RealClock().Monotonic() + d);
  }
  static Deadline Infinite() { return Deadline(absl::InfiniteDuration()); }
  // Time left, never negative.
  absl::Duration Remaining() const;
  bool Expired() const { return Remaining() <= absl::ZeroDuration(); }

 private:
  explicit Deadline(absl::Duration at) : at_(at) {}
  absl::Duration at_;
};

}  // namespace weft
