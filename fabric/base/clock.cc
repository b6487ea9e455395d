#include "fabric/base/clock.h"

#include <ctime>

#include "absl/time/clock.h"

namespace weft {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return absl::DurationFromTimespec(ts);
  }
};

}  // namespace

Clock& RealClock() {
  static SystemClock* clock = new SystemClock;
  return *clock;
}

absl::Duration Deadline::Remaining() const {
  if (at_ == absl::InfiniteDuration()) return at_;
  const absl::Duration left = at_ - RealClock().Monotonic();
  return left < absl::ZeroDuration() ? absl::ZeroDuration() : left;
}

}  // namespace weft
