// The exit codes of `weft`, in one place. Scripts rely on them.
#pragma once

#include "fabric/base/status.h"
#include "proto/job.pb.h"

namespace weft::cli {

enum ExitCode : int {
  kSuccess = 0,
  kError = 1,
  kUsage = 2,        // a wrong command line or job file
  kNotFound = 3,     // no such job, file, program
  kDenied = 4,       // token missing, wrong or readable by others
  kCannotPlace = 5,  // no room for it, or its state does not allow it
  kUnreachable = 6,  // no coordinator answers
  kTimeout = 7,
  kConflict = 8,  // something is there already
  kJobFailed = 20,
  kJobCancelled = 21,
  kPreempted = 22,
  kInterrupted = 130,
};

int ExitCodeOf(const Status& status);
// Of a job that ended; kError for one that has not.
int ExitCodeOf(v1::JobState state);

}  // namespace weft::cli
