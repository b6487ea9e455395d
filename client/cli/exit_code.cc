#include "client/cli/exit_code.h"

namespace weft::cli {

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kUsage;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kDenied;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return kCannotPlace;
    case absl::StatusCode::kUnavailable:
      return kUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return kTimeout;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return kConflict;
    case absl::StatusCode::kCancelled:
      return kInterrupted;
    default:
      return kError;
  }
}

int ExitCodeOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_DONE:
      return kSuccess;
    case v1::JOB_STATE_FAILED:
      return kJobFailed;
    case v1::JOB_STATE_CANCELLED:
      return kJobCancelled;
    default:
      return kError;
  }
}

}  // namespace weft::cli
