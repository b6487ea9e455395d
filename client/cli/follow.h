// Following a job on the screen, for run, submit, watch and wait.
#pragma once

#include <functional>
#include <string>

#include "client/cli/verb.h"

namespace weft::cli {

struct FollowOptions {
  bool progress = true;  // talk about what happens
  bool events = false;   // each event as a line of JSON on standard output
  absl::Duration away_limit = absl::Minutes(10);
  std::function<Status()> check = [] { return absl::OkStatus(); };
};

// Returns the job as it ended. Codes as WatchJob.
StatusOr<v1::Job> Follow(Session& session, Client& client, const std::string& id,
                         const FollowOptions& options);

// The summary on standard output.
void PrintSummary(Session& session, const v1::Job& job);

}  // namespace weft::cli
