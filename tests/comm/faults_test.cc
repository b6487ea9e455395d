// What goes wrong in a group ends every rank's call, with the reason, on every backend.

#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "fabric/base/error_detail.h"
#include "tests/comm/test_group.h"
#include "tests/support/status_matchers.h"

namespace weft::comm {
namespace {

using ::testing::Values;
using ::weft::testing::IsStatus;

// An all_reduce that owns its memory.
struct Sum {
  explicit Sum(int64_t count) : data(count, 1.0f) {
    call.kind = Kind::kAllReduce;
    call.count = count;
    call.send = data.data();
    call.recv = data.data();
    call.label = "gradients";
  }
  std::vector<float> data;
  CollectiveCall call;
};

CollectiveCall Barrier() { return CollectiveCall(); }

class Faults : public ::testing::TestWithParam<std::string> {
 protected:
  Group Make(int32_t size) {
    StatusOr<Group> group = MakeGroup(GetParam(), size);
    EXPECT_TRUE(group.ok()) << group.status();
    return std::move(*group);
  }
};

TEST_P(Faults, AbortDuringACall_EndsItOnAllRanks) {
  Group group = Make(3);
  absl::Notification entered;
  std::thread aborter([&] {
    entered.WaitForNotification();
    group[2]->Abort(Aborted("the job was cancelled"));
  });
  // Rank 2 never makes the call that the others wait in.
  const auto results = OnRanks(group, [&](Communicator& rank) {
    Sum sum(300000);
    RETURN_IF_ERROR(rank.Launch(Barrier(), {}, TestDeadline()));
    if (rank.rank() != 2) return rank.Launch(sum.call, {}, TestDeadline());
    entered.Notify();
    return absl::OkStatus();
  });
  aborter.join();
  for (int32_t rank : {0, 1}) {
    EXPECT_THAT(results[rank], IsStatus(absl::StatusCode::kAborted, "the job was cancelled"));
  }
  EXPECT_THAT(group[2]->Launch(Barrier(), {}, TestDeadline()),
              IsStatus(absl::StatusCode::kAborted, "the job was cancelled"));
}

TEST_P(Faults, AbortOfTheRunningRankItself_EndsItsCall) {
  Group group = Make(2);
  std::thread aborter([&] { group[0]->Abort(Aborted("enough")); });
  EXPECT_THAT(group[0]->Launch(Barrier(), {}, TestDeadline()),
              IsStatus(absl::StatusCode::kAborted, "enough"));
  aborter.join();
}

TEST_P(Faults, PeerThatNeverCalls_EndsAtTheDeadlineAndTheGroupIsDead) {
  Group group = Make(2);
  const Status late = group[0]->Launch(Barrier(), {}, Deadline::After(absl::Milliseconds(30)));
  EXPECT_THAT(late, IsStatus(absl::StatusCode::kDeadlineExceeded, "rank 1"));
  EXPECT_THAT(group[0]->Launch(Barrier(), {}, Deadline::Infinite()),
              IsStatus(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(group[1]->Launch(Barrier(), {}, TestDeadline()),
              IsStatus(absl::StatusCode::kDeadlineExceeded, "told by rank 0"));
}

TEST_P(Faults, PeerThatLeft_IsUnavailableAndNamed) {
  Group group = Make(3);
  group[1].reset();
  Sum sum(100);
  sum.call.kind = Kind::kRecv;
  sum.call.peer = 1;
  const Status status = group[0]->Launch(sum.call, {}, TestDeadline());
  EXPECT_THAT(status, IsStatus(absl::StatusCode::kUnavailable, "rank 1 is gone"));
  ASSERT_TRUE(GetErrorDetail(status).has_value());
  EXPECT_EQ(GetErrorDetail(status)->rank, 1);
  EXPECT_EQ(GetErrorDetail(status)->action, ErrorAction::kRebuildComm);
}

TEST_P(Faults, PeerThatLeftAfterSending_StillDelivers) {
  Group group = Make(2);
  Sum out(1000), in(1000);
  out.data[999] = 7;
  out.call.kind = Kind::kSend;
  out.call.peer = 0;
  ASSERT_OK(group[1]->Launch(out.call, {}, TestDeadline()));
  group[1].reset();
  in.call.kind = Kind::kRecv;
  in.call.peer = 1;
  ASSERT_OK(group[0]->Launch(in.call, {}, TestDeadline()));
  EXPECT_EQ(in.data[999], 7);
}

TEST_P(Faults, BadRecord_IsInvalidArgumentAndEndsTheGroup) {
  struct Bad {
    const char* says;
    void (*spoil)(CollectiveCall&);
  };
  const Bad rows[] = {
      {"count is negative", [](CollectiveCall& c) { c.count = -1; }},
      {"no size", [](CollectiveCall& c) { c.dtype = DType::kInvalid; }},
      {"not bf16", [](CollectiveCall& c) { c.dtype = DType::kBF16; }},
      {"send is null", [](CollectiveCall& c) { c.send = nullptr; }},
      {"recv is null", [](CollectiveCall& c) { c.recv = nullptr; }},
      {"rank 2 is not in a group of 2",
       [](CollectiveCall& c) {
         c.kind = Kind::kBroadcast;
         c.peer = 2;
       }},
      {"cannot send to itself",
       [](CollectiveCall& c) {
         c.kind = Kind::kSend;
         c.peer = 0;
       }},
      {"multiple of the 2 ranks", [](CollectiveCall& c) { c.kind = Kind::kAllToAll; }},
      {"unknown kind", [](CollectiveCall& c) { c.kind = static_cast<Kind>(99); }},
      {"lanes cannot be shared",
       [](CollectiveCall& c) {
         static const Partial partial{{0, 1}, nullptr};
         c.order = Order::kOrdered;
         c.lanes = 1;
         c.partials = absl::MakeConstSpan(&partial, 1);
       }},
      {"expected [0, 2)",
       [](CollectiveCall& c) {
         static const Partial partial{{0, 1}, nullptr};
         c.order = Order::kOrdered;
         c.lanes = 4;
         c.partials = absl::MakeConstSpan(&partial, 1);
       }},
  };
  for (const Bad& row : rows) {
    Group group = Make(2);
    Sum sum(101);
    row.spoil(sum.call);
    EXPECT_THAT(group[0]->Launch(sum.call, {}, TestDeadline()),
                IsStatus(absl::StatusCode::kInvalidArgument, row.says));
    EXPECT_THAT(group[1]->Launch(Barrier(), {}, TestDeadline()),
                IsStatus(absl::StatusCode::kInvalidArgument, row.says));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Faults, Values("in_process", "shm", "tcp"));

class Mismatch : public ::testing::TestWithParam<std::string> {};

TEST_P(Mismatch, DifferentCalls_AreRefusedOnAllRanksAndNamed) {
  struct Row {
    const char* says;  // of rank 1's call
    void (*differ)(CollectiveCall&);
  };
  const Row rows[] = {
      {"f32[8]", [](CollectiveCall& c) { c.count = 8; }},
      {"i32[9]", [](CollectiveCall& c) { c.dtype = DType::kI32; }},
      {"ordered", [](CollectiveCall& c) { c.order = Order::kOrdered; }},
      {"'metrics'", [](CollectiveCall& c) { c.label = "metrics"; }},
      {"barrier", [](CollectiveCall& c) { c.kind = Kind::kBarrier; }},
      {"send f32[9] peer=0",
       [](CollectiveCall& c) {
         c.kind = Kind::kSend;
         c.peer = 0;
       }},
  };
  for (const Row& row : rows) {
    StatusOr<Group> group = MakeGroup(GetParam(), 3);
    ASSERT_OK(group.status());
    const auto results = OnRanks(*group, [&](Communicator& rank) {
      Sum first(5), second(9);
      RETURN_IF_ERROR(rank.Launch(first.call, {}, TestDeadline()));
      if (rank.rank() == 1) row.differ(second.call);
      return rank.Launch(second.call, {}, TestDeadline());
    });
    for (const Status& status : results) {
      EXPECT_THAT(status, IsStatus(absl::StatusCode::kFailedPrecondition, row.says));
      EXPECT_THAT(status, IsStatus(absl::StatusCode::kFailedPrecondition, "rank 1 makes call"));
      EXPECT_THAT(status, IsStatus(absl::StatusCode::kFailedPrecondition,
                                   "all_reduce f32[9] ring 'gradients'"));
    }
  }
}

TEST_P(Mismatch, SendToARankThatExpectsLess_IsRefusedOnBoth) {
  StatusOr<Group> group = MakeGroup(GetParam(), 2);
  ASSERT_OK(group.status());
  const auto results = OnRanks(*group, [&](Communicator& rank) {
    Sum sum(rank.rank() == 0 ? 9 : 8);
    sum.call.kind = rank.rank() == 0 ? Kind::kSend : Kind::kRecv;
    sum.call.peer = 1 - rank.rank();
    return rank.Launch(sum.call, {}, TestDeadline());
  });
  for (const Status& status : results) {
    EXPECT_THAT(status, IsStatus(absl::StatusCode::kFailedPrecondition, "send f32[9]"));
    EXPECT_THAT(status, IsStatus(absl::StatusCode::kFailedPrecondition, "recv f32[8]"));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Mismatch,
                         Values("in_process_checked", "shm_checked", "tcp_checked"));

}  // namespace
}  // namespace weft::comm
