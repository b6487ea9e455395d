// Follows a job to its end over lost connections and restarts of the coordinator.
#pragma once

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "client/client.h"

namespace weft {

struct WatchOptions {
  int64_t after_sequence = 0;
  // How long nobody may answer before the watch gives up with Unavailable.
  absl::Duration away_limit = absl::Minutes(10);
  // Asked between attempts; an error ends the watch with it.
  std::function<Status()> check = [] { return absl::OkStatus(); };
};

bool IsTerminal(v1::JobState state);

// Hands each event over once and in order, and returns the job as it ended. Codes as Client's.
StatusOr<v1::Job> WatchJob(Client& client, const std::string& id, const WatchOptions& options,
                           absl::FunctionRef<void(const v1::JobEvent&)> on_event);

}  // namespace weft
