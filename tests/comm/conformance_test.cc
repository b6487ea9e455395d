// Every backend, plain and checked, runs every row of CommCases at every group size.

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/comm/cases.h"
#include "tests/comm/test_group.h"

namespace weft::comm {
namespace {

// Small whole numbers, so that sums are exact in every dtype and order.
int64_t ValueAt(int32_t rank, int64_t i) { return (i * 7 + rank * 31 + 3) % 101; }

// Element i of `dtype` holding `value`; bytes and bf16 take its low bits, as they are never added.
void Store(DType dtype, std::byte* base, int64_t i, int64_t value) {
  const auto put = [&](auto typed) {
    std::memcpy(base + i * static_cast<int64_t>(sizeof(typed)), &typed, sizeof(typed));
  };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF64:
      return put(static_cast<double>(value));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kI64:
      return put(static_cast<int64_t>(value));
    case DType::kBF16:
      return put(static_cast<uint16_t>(value));
    default:
      return put(static_cast<uint8_t>(value));
  }
}

template <typename F>
std::vector<std::byte> Fill(DType dtype, int64_t count, F value) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) Store(dtype, bytes.data(), i, value(i));
  return bytes;
}

struct Exchange {
  std::vector<std::byte> send;
  std::vector<std::byte> recv;
  std::vector<std::byte> expected;  // empty: nothing is received
};

int64_t SumAt(int32_t size, int64_t i) {
  int64_t sum = 0;
  for (int32_t rank = 0; rank < size; ++rank) sum += ValueAt(rank, i);
  return sum;
}

int32_t OwnerOf(int64_t count, int32_t size, int64_t i) {
  return static_cast<int32_t>(i / ChunkOf(count, size, 0).size);
}

// What `rank` sends and must receive in `call`.
Exchange MakeExchange(const CollectiveCall& call, int32_t rank, int32_t size) {
  const DType dtype = call.dtype;
  const int64_t n = call.count;
  const auto own = [&](int64_t i) { return ValueAt(rank, i); };
  const Chunk chunk = ChunkOf(n, size, rank);
  Exchange x;
  switch (call.kind) {
    case Kind::kAllReduce:
      x.send = Fill(dtype, n, own);
      x.expected = Fill(dtype, n, [&](int64_t i) { return SumAt(size, i); });
      break;
    case Kind::kReduceScatter:
      x.send = Fill(dtype, n, own);
      x.expected = Fill(dtype, chunk.size, [&](int64_t i) { return SumAt(size, chunk.begin + i); });
      break;
    case Kind::kAllGather:
      x.send = Fill(dtype, chunk.size, [&](int64_t i) { return own(chunk.begin + i); });
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(OwnerOf(n, size, i), i); });
      break;
    case Kind::kBroadcast:
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(call.peer, i); });
      x.recv = rank == call.peer ? x.expected : std::vector<std::byte>(x.expected.size());
      return x;
    case Kind::kAllToAll: {
      const int64_t each = n / size;
      x.send = Fill(dtype, n, own);
      // Chunk r of what rank r's peers send: element rank * each + j of rank r = i / each.
      x.expected = Fill(dtype, n, [&](int64_t i) {
        return ValueAt(static_cast<int32_t>(i / each), rank * each + i % each);
      });
      break;
    }
    case Kind::kSend:
      x.send = Fill(dtype, n, own);
      break;
    case Kind::kRecv:
      x.expected = Fill(dtype, n, [&](int64_t i) { return ValueAt(call.peer, i); });
      break;
    case Kind::kBarrier:
      break;
  }
  x.recv.resize(x.expected.size());
  return x;
}

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
  CollectiveCall call;
  call.kind = row.kind;
  call.dtype = row.dtype;
  call.count = row.kind == Kind::kAllToAll ? row.count * rank.size() : row.count;
  call.order = row.order;
  call.label = "case";
  const int32_t size = rank.size(), self = rank.rank();
  if (row.kind == Kind::kBroadcast) {
    call.peer = static_cast<int32_t>(row.count % size);
    return RunCall(rank, call);
  }
  if (row.kind != Kind::kSend && row.kind != Kind::kRecv) return RunCall(rank, call);
  // Send rows pass along the line of ranks, recv rows back.
  const int32_t step = row.kind == Kind::kSend ? 1 : -1;
  const int32_t from = self - step, to = self + step;
  if (from >= 0 && from < size) {
    call.kind = Kind::kRecv;
    call.peer = from;
    RETURN_IF_ERROR(RunCall(rank, call));
  }
  if (to >= 0 && to < size) {
    call.kind = Kind::kSend;
    call.peer = to;
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
