#include "client/cli/exit_code.h"

#include "gtest/gtest.h"

namespace weft::cli {
namespace {

TEST(ExitCode, EachStatusCode_HasItsNumber) {
  using absl::StatusCode;
  const std::pair<StatusCode, int> rows[] = {
      {StatusCode::kOk, 0},
      {StatusCode::kCancelled, 130},
      {StatusCode::kUnknown, 1},
      {StatusCode::kInvalidArgument, 2},
      {StatusCode::kDeadlineExceeded, 7},
      {StatusCode::kNotFound, 3},
      {StatusCode::kAlreadyExists, 8},
      {StatusCode::kPermissionDenied, 4},
      {StatusCode::kResourceExhausted, 5},
      {StatusCode::kFailedPrecondition, 5},
      {StatusCode::kAborted, 8},
      {StatusCode::kOutOfRange, 2},
      {StatusCode::kUnimplemented, 1},
      {StatusCode::kInternal, 1},
      {StatusCode::kUnavailable, 6},
      {StatusCode::kDataLoss, 1},
      {StatusCode::kUnauthenticated, 4},
  };
  for (const auto& [code, exit_code] : rows) {
    EXPECT_EQ(ExitCodeOf(Status(code, "")), exit_code) << absl::StatusCodeToString(code);
  }
}

TEST(ExitCode, EachEndOfAJob_HasItsNumber) {
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_DONE), 0);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_FAILED), 20);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_CANCELLED), 21);
  EXPECT_EQ(ExitCodeOf(v1::JOB_STATE_RUNNING), 1);
}

}  // namespace
}  // namespace weft::cli
