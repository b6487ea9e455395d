#include "worker/exec/start_up_clock.h"

#include "gtest/gtest.h"

#include "tests/support/fake_clock.h"

namespace weft {
namespace {

std::vector<std::pair<std::string, double>> Milliseconds(const StartUpClock& clock) {
  std::vector<std::pair<std::string, double>> phases;
  for (const auto& phase : clock.phases()) {
    phases.emplace_back(phase.name, absl::ToDoubleMilliseconds(phase.time));
  }
  return phases;
}

using Phases = std::vector<std::pair<std::string, double>>;

TEST(StartUpClock, PhasesOfWorkerAndExecutor_FollowEachOther) {
  testing::FakeClock time;
  const absl::Duration now = time.Monotonic();
  time.Advance(absl::Milliseconds(100));
  StartUpClock clock(&time, {.asked = now + absl::Milliseconds(10),
                             .forked = now + absl::Milliseconds(12),
                             .entered = now + absl::Milliseconds(40)});
  time.Advance(absl::Milliseconds(5));
  clock.End("device");
  time.Advance(absl::Milliseconds(3));
  clock.End("wait");
  time.Advance(absl::Milliseconds(2));
  clock.End("bind");
  time.Advance(absl::Milliseconds(4));
  clock.End("wait");
  time.Advance(absl::Milliseconds(9));
  clock.End("first step");
  clock.Split("first step", "capture", absl::Milliseconds(6));
  EXPECT_EQ(Milliseconds(clock), (Phases{{"spawn", 2},
                                         {"libraries", 28},
                                         {"connect", 60},
                                         {"device", 5},
                                         {"wait", 7},
                                         {"bind", 2},
                                         {"capture", 6},
                                         {"first step", 3}}));
}

TEST(StartUpClock, UnknownStart_CountsFromItsOwn) {
  testing::FakeClock time;
  StartUpClock clock(&time, {});
  time.Advance(absl::Milliseconds(5));
  clock.End("device");
  EXPECT_EQ(Milliseconds(clock), (Phases{{"device", 5}}));
}

TEST(StartUpClock, TimesOutOfOrder_AreNeverNegative) {
  testing::FakeClock time;
  const absl::Duration now = time.Monotonic();
  StartUpClock clock(&time, {.asked = now + absl::Milliseconds(10),
                             .forked = now + absl::Milliseconds(4),
                             .entered = now});
  clock.End("device");
  for (const auto& phase : clock.phases()) EXPECT_GE(phase.time, absl::ZeroDuration());
}

}  // namespace
}  // namespace weft
