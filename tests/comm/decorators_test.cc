#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/comm/faulty.h"
#include "fabric/comm/recorded.h"
#include "tests/comm/test_group.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace weft::comm {
namespace {

using ::weft::testing::FakeClock;
using ::weft::testing::IsStatus;

CollectiveCall Sum(std::vector<float>& data) {
  CollectiveCall call;
  call.kind = Kind::kAllReduce;
  call.count = static_cast<int64_t>(data.size());
  call.send = data.data();
  call.recv = data.data();
  call.label = "gradients";
  return call;
}

TEST(Recorded, KeepsTheLastCallsWithTimesAndOutcome) {
  FakeClock clock;
  auto record = std::make_shared<FlightRecord>(2, &clock);
  Fault fault;
  fault.at_call = 2;
  fault.before = [&] { clock.Advance(absl::Milliseconds(12)); };
  fault.fail = Unavailable("rank 3 is gone");
  auto rank = MakeRecorded(MakeFaulty(MakeLoopback(), fault), record);
  std::vector<float> data(5);
  EXPECT_OK(rank->Launch(Sum(data), {}, TestDeadline()));
  EXPECT_OK(rank->Launch(CollectiveCall(), {}, TestDeadline()));
  EXPECT_FALSE(rank->Launch(Sum(data), {}, TestDeadline()).ok());
  const auto entries = record->Entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].call, "barrier");
  EXPECT_FALSE(entries[0].running);
  EXPECT_EQ(entries[1].sequence, 2u);
  EXPECT_EQ(entries[1].took, absl::Milliseconds(12));
  EXPECT_THAT(record->Text(), ::testing::HasSubstr("#1 barrier at "));
  EXPECT_THAT(record->Text(), ::testing::HasSubstr("#2 all_reduce f32[5] ring 'gradients' at "));
  EXPECT_THAT(record->Text(), ::testing::HasSubstr("took 12.000 ms UNAVAILABLE: rank 3 is gone"));
}

TEST(Recorded, RunningCall_IsSeenFromOutside) {
  FakeClock clock;
  auto record = std::make_shared<FlightRecord>(4, &clock);
  Fault fault;
  std::string seen;
  fault.before = [&] {
    clock.Advance(absl::Milliseconds(7));
    seen = record->Text();
  };
  auto rank = MakeRecorded(MakeFaulty(MakeLoopback(), fault), record);
  EXPECT_OK(rank->Launch(CollectiveCall(), {}, TestDeadline()));
  EXPECT_THAT(seen, ::testing::HasSubstr("running for 7.000 ms"));
}

TEST(Faulty, ChosenCall_FailsOnAllRanks) {
  Group group = MakeInProcessGroup(2);
  Fault fault;
  fault.at_call = 1;
  fault.fail = Internal("injected");
  group[0] = MakeFaulty(std::move(group[0]), fault);
  const auto results = OnRanks(group, [](Communicator& rank) {
    std::vector<float> data(5);
    for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(rank.Launch(Sum(data), {}, TestDeadline()));
    return absl::OkStatus();
  });
  for (const Status& status : results) {
    EXPECT_THAT(status, IsStatus(absl::StatusCode::kInternal, "injected"));
  }
}

TEST(Faulty, Corruption_ChangesWhatIsReceivedOnce) {
  Fault fault;
  fault.corrupt = true;
  auto rank = MakeFaulty(MakeLoopback(), fault);
  std::vector<float> data(2, 1.0f);
  EXPECT_OK(rank->Launch(Sum(data), {}, TestDeadline()));
  EXPECT_NE(data[0], 1.0f);
  EXPECT_EQ(data[1], 1.0f);
}

}  // namespace
}  // namespace weft::comm
