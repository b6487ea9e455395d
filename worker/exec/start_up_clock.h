// StartUpClock: where the time until a rank's first step goes. Phases follow each other without
// gaps, so they add up; one that comes again adds to its first. A plain value.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "worker/exec/exec_spec.h"

namespace weft {

class StartUpClock {
 public:
  struct Phase {
    std::string name;
    absl::Duration time;
  };

  // `clock` outlives it. Begins when the worker was told to start the rank, where that is known.
  StartUpClock(Clock* clock, const StartTimes& times) : clock_(clock), last_(clock->Monotonic()) {
    if (times.asked == absl::ZeroDuration()) return;
    const absl::Duration now = last_;
    last_ = times.asked;
    EndAt("spawn", times.forked);
    EndAt("libraries", times.entered);
    EndAt("connect", now);
  }

  // The phase that began at the last end is over.
  void End(absl::string_view name) { EndAt(name, clock_->Monotonic()); }

  // Up to `part` of `whole` was spent in `name`, which comes before it.
  void Split(absl::string_view whole, absl::string_view name, absl::Duration part) {
    const auto it = Find(whole);
    if (it == phases_.end() || part <= absl::ZeroDuration()) return;
    part = std::min(part, it->time);
    it->time -= part;
    phases_.insert(it, {std::string(name), part});
  }

  const std::vector<Phase>& phases() const { return phases_; }

 private:
  std::vector<Phase>::iterator Find(absl::string_view name) {
    return std::find_if(phases_.begin(), phases_.end(),
                        [&](const Phase& phase) { return phase.name == name; });
  }
  void EndAt(absl::string_view name, absl::Duration at) {
    const absl::Duration time = std::max(at - last_, absl::ZeroDuration());
    last_ = std::max(last_, at);
    if (const auto it = Find(name); it != phases_.end()) {
      it->time += time;
    } else {
      phases_.push_back({std::string(name), time});
    }
  }

  Clock* clock_;
  absl::Duration last_;
  std::vector<Phase> phases_;
};

}  // namespace weft
