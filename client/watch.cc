#include "client/watch.h"

#include <algorithm>

#include "absl/time/clock.h"

#include "fabric/base/clock.h"

namespace weft {

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_DONE || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

StatusOr<v1::Job> WatchJob(Client& client, const std::string& id, const WatchOptions& options,
                           absl::FunctionRef<void(const v1::JobEvent&)> on_event) {
  int64_t sequence = options.after_sequence;
  absl::Duration pause = absl::Milliseconds(50);
  Deadline away = Deadline::After(options.away_limit);
  while (true) {
    bool heard = false;
    const Status status = client.StreamEvents(id, sequence, [&](const v1::JobEvent& event) {
      heard = true;
      if (event.sequence() <= sequence) return;
      sequence = event.sequence();
      on_event(event);
    });
    if (status.ok()) {
      ASSIGN_OR_RETURN(v1::Job job, client.Get(id));
      if (IsTerminal(job.state())) return job;
      heard = true;  // the coordinator shut its streams in an orderly way
    } else if (status.code() != absl::StatusCode::kUnavailable) {
      return status;
    }
    RETURN_IF_ERROR(options.check());
    if (heard) {
      away = Deadline::After(options.away_limit);
      pause = absl::Milliseconds(50);
    } else if (away.Expired()) {
      return status;
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Seconds(1));
  }
}

}  // namespace weft
