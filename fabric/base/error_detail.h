// The one typed payload of a Status: who failed, where, and what to do about it.
// Recovery switches on `action`, never on message text. fabric/wire turns it into gRPC details.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fabric/base/status.h"

namespace weft {

enum class ErrorAction {
  kUnspecified = 0,
  kFixInput = 1,       // the caller's job, file or flag is wrong
  kRetryStep = 2,      // nothing was changed; the same step may run again
  kRebuildComm = 3,    // a member went away; survivors join anew
  kRestartWorker = 4,  // the process or its device is unusable
  kFailJob = 5,        // retrying cannot help
  kReportBug = 6,      // an invariant of ours broke
};

struct ErrorDetail {
  std::string origin;  // the part that noticed, e.g. "comm", "agent", "planner"
  ErrorAction action = ErrorAction::kUnspecified;
  std::string worker;
  std::string job;
  int64_t generation = 0;
  int32_t rank = -1;  // -1: not about one rank
  int64_t step = -1;  // -1: not about one step
  std::string op;     // op or collective and the node's name
};

// Returns `status` carrying `detail`, replacing an earlier one. No effect on OK.
Status WithDetail(Status status, const ErrorDetail& detail);

// The detail that `status` carries, if any.
std::optional<ErrorDetail> GetErrorDetail(const Status& status);

}  // namespace weft
