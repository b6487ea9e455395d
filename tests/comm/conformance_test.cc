// Every backend, plain and checked, runs every row of CommCases at every group size.

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/comm/cases.h"
#include "tests/comm/exchange.h"
#include "tests/comm/test_group.h"

namespace weft::comm {
namespace {

Status RunCall(Communicator& rank, CollectiveCall call) {
  Exchange x = MakeExchange(call, rank.rank(), rank.size());
  call.send = x.send.data();
  call.recv = x.recv.data();
  RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
  if (x.recv != x.expected) return Internal(ToString(call), " gave wrong values");
  if (call.kind != Kind::kAllReduce) return absl::OkStatus();
  call.recv = x.send.data();
  RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
  if (x.send != x.expected) return Internal(ToString(call), " in place gave wrong values");
  return absl::OkStatus();
}

Status RunCase(Communicator& rank, const CommCase& row) {
  for (const CollectiveCall& call : CallsOf(row, rank.rank(), rank.size())) {
    RETURN_IF_ERROR(RunCall(rank, call));
  }
  return absl::OkStatus();
}

struct Setting {
  std::string backend;
  int32_t size;
};

class Conformance : public testing::TestWithParam<Setting> {};

TEST_P(Conformance, EveryCase_GivesTheRightValues) {
  StatusOr<Group> group = MakeGroup(GetParam().backend, GetParam().size);
  ASSERT_TRUE(group.ok()) << group.status();
  const std::vector<CommCase> cases = CommCases();
  const std::vector<Status> results = OnRanks(*group, [&](Communicator& rank) {
    for (const CommCase& row : cases) RETURN_IF_ERROR(RunCase(rank, row));
    return absl::OkStatus();
  });
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const char* backend : {"in_process", "shm", "tcp"}) {
    for (const int32_t size : {1, 2, 3, 4, 8}) settings.push_back({backend, size});
    settings.push_back({std::string(backend) + "_checked", 2});
    settings.push_back({std::string(backend) + "_checked", 5});
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, testing::ValuesIn(Settings()),
                         [](const testing::TestParamInfo<Setting>& info) {
                           return info.param.backend + "_" + std::to_string(info.param.size);
                         });

}  // namespace
}  // namespace weft::comm
