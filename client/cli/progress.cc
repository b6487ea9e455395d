#include "client/cli/progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/printer.h"
#include "fabric/wire/enum_name.h"

namespace weft::cli {
namespace {

constexpr char kEraseLine[] = "\r\033[K";
// Of a plain line, between two tenths of the job.
constexpr absl::Duration kPlainPause = absl::Seconds(10);
// On a terminal: faster than that nobody reads.
constexpr absl::Duration kBarPause = absl::Milliseconds(100);

}  // namespace

Progress::Progress(const ProgressOptions& options, Clock* clock,
                   std::function<void(absl::string_view)> write)
    : options_(options), clock_(clock), write_(std::move(write)) {}

void Progress::OnEvent(const v1::JobEvent& event) {
  switch (event.kind_case()) {
    case v1::JobEvent::kState: {
      const std::string& reason = event.state().reason();
      Note(absl::StrCat(wire::EnumNameOf(event.state().state()), reason.empty() ? "" : ": ",
                        reason));
      break;
    }
    case v1::JobEvent::kProgress:
      OnSteps(event.progress());
      break;
    case v1::JobEvent::kEval:
      Note(absl::StrFormat("step %d: evaluation loss %.4f, accuracy %.2f %%", event.eval().step(),
                           event.eval().loss(), 100 * event.eval().accuracy()));
      break;
    case v1::JobEvent::kCheckpoint:
      Note(absl::StrCat("step ", event.checkpoint().step(), ": checkpoint ",
                        event.checkpoint().path()));
      break;
    case v1::JobEvent::kNote:
      Note(event.note());
      break;
    case v1::JobEvent::kGap:
      Note("(older events were dropped)");
      break;
    case v1::JobEvent::kStartup:
    case v1::JobEvent::kCounters:
      break;  // for streams of JSON; the summary has what people want
    case v1::JobEvent::KIND_NOT_SET:
      break;
  }
}

void Progress::Note(absl::string_view line) {
  if (bar_.empty()) return write_(absl::StrCat(line, "\n"));
  write_(absl::StrCat(kEraseLine, line, "\n", bar_));
}

void Progress::Finish() {
  if (bar_.empty()) return;
  write_("\n");
  bar_.clear();
}

void Progress::OnSteps(const v1::StepProgress& steps) {
  if (steps.step_ms() > 0) {
    constexpr double kNewest = 0.2;
    step_ms_ =
        step_ms_ == 0 ? steps.step_ms() : (1 - kNewest) * step_ms_ + kNewest * steps.step_ms();
  }
  const absl::Duration now = clock_->Monotonic();
  const bool last = steps.of() > 0 && steps.step() >= steps.of();
  if (options_.in_place) {
    if (!last && now - last_line_ < kBarPause) return;
    last_line_ = now;
    bar_ = BarLine(steps);
    return write_(absl::StrCat(kEraseLine, bar_));
  }
  const int64_t tenth = steps.of() > 0 ? steps.step() * 10 / steps.of() : 0;
  if (tenth <= last_tenth_ && now - last_line_ < kPlainPause) return;
  last_tenth_ = tenth;
  last_line_ = now;
  write_(absl::StrCat(PlainLine(steps), "\n"));
}

double Progress::SecondsLeft(const v1::StepProgress& steps) const {
  if (step_ms_ == 0 || steps.of() == 0) return -1;
  return static_cast<double>(steps.of() - steps.step()) * step_ms_ / 1000;
}

std::string Progress::PlainLine(const v1::StepProgress& steps) const {
  return absl::StrFormat("step %d/%d  loss %.4f  %s  %s left", steps.step(), steps.of(),
                         steps.loss(), FormatRate(steps.tokens_per_s()),
                         FormatSeconds(SecondsLeft(steps)));
}

std::string Progress::BarLine(const v1::StepProgress& steps) const {
  const double share =
      steps.of() > 0
          ? std::clamp(static_cast<double>(steps.step()) / static_cast<double>(steps.of()), 0.0,
                       1.0)
          : 0.0;
  const std::string text = PlainLine(steps);
  // The last column stays free: some terminals wrap when it is written.
  const int room = options_.width - 1;
  const int bar = std::min(30, room - static_cast<int>(text.size()) - 9);  // "100 % [" and "] "
  constexpr int kLeastBar = 5;
  if (bar < kLeastBar) return text.substr(0, static_cast<size_t>(std::max(room, 0)));
  const auto filled = static_cast<size_t>(share * bar);
  std::string blocks(filled, '#');
  const std::string rest(static_cast<size_t>(bar) - filled, '.');
  if (options_.color) blocks = absl::StrCat("\033[32m", blocks, "\033[0m");
  return absl::StrFormat("%3d %% [%s%s] %s", static_cast<int>(share * 100), blocks, rest, text);
}

}  // namespace weft::cli
