// A job's events as words for a person: one line that is rewritten on a terminal, plain lines
// elsewhere. Used by one thread.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "proto/job.pb.h"

namespace weft::cli {

struct ProgressOptions {
  bool in_place = false;
  int width = 80;  // columns, when in place
  bool color = false;
};

class Progress {
 public:
  // `write` takes text as it is; both outlive this object.
  Progress(const ProgressOptions& options, Clock* clock,
           std::function<void(absl::string_view)> write);

  void OnEvent(const v1::JobEvent& event);
  // A line of its own, above the bar if there is one.
  void Note(absl::string_view line);
  // Ends the bar's line.
  void Finish();

 private:
  void OnSteps(const v1::StepProgress& steps);
  std::string BarLine(const v1::StepProgress& steps) const;
  std::string PlainLine(const v1::StepProgress& steps) const;
  double SecondsLeft(const v1::StepProgress& steps) const;

  const ProgressOptions options_;
  Clock* const clock_;
  const std::function<void(absl::string_view)> write_;
  std::string bar_;     // what is on the last line now; empty: nothing
  double step_ms_ = 0;  // smoothed
  int64_t last_tenth_ = 0;
  absl::Duration last_line_ = -absl::InfiniteDuration();
};

}  // namespace weft::cli
