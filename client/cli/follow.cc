#include "client/cli/follow.h"

#include "client/cli/progress.h"
#include "client/cli/summary.h"
#include "client/watch.h"
#include "fabric/base/clock.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {

StatusOr<v1::Job> Follow(Session& session, Client& client, const std::string& id,
                         const FollowOptions& options) {
  ProgressOptions style;
  style.in_place = session.environment.stderr_terminal && !session.environment.dumb_terminal;
  style.width = session.environment.width;
  style.color = session.printer.color_err();
  Progress progress(style, &RealClock(),
                    [&](absl::string_view text) { session.printer.Talk(text); });
  WatchOptions watch;
  watch.away_limit = options.away_limit;
  watch.check = options.check;
  auto job = WatchJob(client, id, watch, [&](const v1::JobEvent& event) {
    if (options.events) session.printer.Line(wire::MessageToJson(event));
    if (options.progress) progress.OnEvent(event);
  });
  progress.Finish();
  return job;
}

void PrintSummary(Session& session, const v1::Job& job) {
  if (session.printer.json()) {
    session.printer.Line(SummaryJson(job));
  } else {
    session.printer.Data(SummaryText(job));
  }
}

}  // namespace weft::cli
