#include "server/recovery/failure_cause.h"

#include <csignal>

#include <gtest/gtest.h>

#include "fabric/base/error_detail.h"

namespace weft::recovery {
namespace {

Status PeerGone() {
  ErrorDetail detail;
  detail.origin = "comm";
  detail.action = ErrorAction::kRebuildComm;
  return WithDetail(Unavailable("peer rank 1 is gone"), detail);
}
const Status kPeerGone = PeerGone();

Observation Said(int32_t rank, Status error, int64_t step = 4) {
  return {.seen = Seen::kError, .rank = rank, .worker = "w", .step = step, .error = error};
}
Observation Killed(int32_t rank, int signal, Status before = absl::OkStatus()) {
  return {.seen = Seen::kExited,
          .rank = rank,
          .worker = "w",
          .step = 4,
          .error = before,
          .signal = signal};
}
Observation Exited(int32_t rank, int code, Status before = absl::OkStatus()) {
  return {.seen = Seen::kExited,
          .rank = rank,
          .worker = "w",
          .step = 4,
          .error = before,
          .exit_code = code};
}

struct Case {
  const char* name;
  std::vector<Observation> seen;
  absl::StatusCode code;
  const char* message;
  int32_t rank;
};

TEST(TrueCause, Table_NamesTheCauseNotItsConsequences) {
  Observation oom = Killed(3, SIGKILL);
  oom.out_of_memory = true;
  Observation lost{.seen = Seen::kLost, .rank = 2, .worker = "w", .step = -1};
  lost.error = Unavailable("no heartbeat for 2s");
  const Case cases[] = {
      {"a kill beats survivors' errors",
       {Said(0, kPeerGone), Said(2, kPeerGone), Killed(1, SIGKILL)},
       absl::StatusCode::kUnavailable,
       "rank 1 on worker w was killed by SIGKILL after step 4",
       1},
      {"a crash is a bug",
       {Said(0, kPeerGone), Killed(1, SIGSEGV)},
       absl::StatusCode::kInternal,
       "rank 1 on worker w was killed by SIGSEGV after step 4",
       1},
      {"out of memory",
       {Said(0, kPeerGone), oom},
       absl::StatusCode::kResourceExhausted,
       "rank 3 on worker w was killed because the node ran out of memory after step 4; use more "
       "ranks or a smaller batch or model",
       3},
      {"a silent exit code",
       {Exited(1, 7)},
       absl::StatusCode::kInternal,
       "rank 1 on worker w exited with code 7 after step 4",
       1},
      {"an early exit",
       {Exited(1, 0)},
       absl::StatusCode::kInternal,
       "rank 1 on worker w exited before the job's end after step 4",
       1},
      {"a named error beats the survivors' exits",
       {Exited(0, 1, kPeerGone), Said(1, InvalidArgument("data changed")), Exited(1, 1, kPeerGone)},
       absl::StatusCode::kInvalidArgument,
       "rank 1: data changed",
       1},
      {"what a process said before its exit",
       {Exited(0, 1, kPeerGone), Exited(1, 1, DataLoss("checkpoint is damaged"))},
       absl::StatusCode::kDataLoss,
       "rank 1: checkpoint is damaged",
       1},
      {"a lost worker",
       {Said(0, kPeerGone), lost},
       absl::StatusCode::kUnavailable,
       "rank 2 on worker w was lost before its first step: no heartbeat for 2s",
       2},
      {"only consequences: the first",
       {Said(2, kPeerGone), Said(0, kPeerGone)},
       absl::StatusCode::kUnavailable,
       "rank 2: peer rank 1 is gone",
       2},
      {"two kills: the first",
       {Killed(2, SIGTERM), Killed(0, SIGKILL)},
       absl::StatusCode::kUnavailable,
       "rank 2 on worker w was killed by SIGTERM after step 4",
       2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Status cause = TrueCause({"j", 3}, c.seen);
    EXPECT_EQ(cause.code(), c.code);
    EXPECT_EQ(std::string(cause.message()), c.message);
    const auto detail = GetErrorDetail(cause);
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->rank, c.rank);
    EXPECT_EQ(detail->job, "j");
    EXPECT_EQ(detail->generation, 3);
  }
}

TEST(IsDecisive, ConsequencesAreNot) {
  EXPECT_FALSE(IsDecisive(Said(0, kPeerGone)));
  EXPECT_FALSE(IsDecisive(Said(0, Aborted("stopped"))));
  EXPECT_FALSE(IsDecisive(Exited(0, 1, kPeerGone)));
  EXPECT_TRUE(IsDecisive(Exited(0, 1)));
  EXPECT_TRUE(IsDecisive(Killed(0, SIGKILL, kPeerGone)));
  EXPECT_TRUE(IsDecisive(Said(0, InvalidArgument("x"))));
}

TEST(SignalName, UnknownNumber_IsPrinted) {
  EXPECT_EQ(SignalName(SIGKILL), "SIGKILL");
  EXPECT_EQ(SignalName(77), "signal 77");
}

}  // namespace
}  // namespace weft::recovery
