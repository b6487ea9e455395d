// The plans of all ranks together, carried out on the host: every message has its receiver, nothing
// is written twice, and the sums have the bits of the lane tree and of the host's communicators.

#include "worker/core/device/ordered_exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/base/lane_tree.h"
#include "tests/comm/lane_values.h"
#include "tests/comm/test_group.h"

namespace weft::comm {
namespace {

constexpr float kGarbage = std::numeric_limits<float>::quiet_NaN();

enum class Result { kApart, kOverFirst, kOverLast };

// One rank's memory, and what its plan does with it.
struct Rank {
  OrderedExchange plan;
  Holding held;
  std::vector<float> apart, scratch;
  float* recv = nullptr;
  std::vector<int> recv_writes, scratch_writes;  // by element, before the gather

  float* At(const ExchangePlace& place) {
    switch (place.where) {
      case ExchangePlace::Where::kPartial:
        return held.sums[place.partial].data() + place.at;
      case ExchangePlace::Where::kRecv:
        return recv + place.at;
      case ExchangePlace::Where::kScratch:
        return scratch.data() + place.at;
    }
    return nullptr;
  }

  void CountWrites(const ExchangePlace& place, int64_t count) {
    ASSERT_NE(place.where, ExchangePlace::Where::kPartial);
    auto& writes = place.where == ExchangePlace::Where::kRecv ? recv_writes : scratch_writes;
    ASSERT_LE(place.at + count, static_cast<int64_t>(writes.size()));
    for (int64_t i = 0; i < count; ++i) ++writes[place.at + i];
  }

  // As the kernel does it.
  void Add(const ExchangeSum& sum) {
    ASSERT_EQ(sum.nodes.size(), plan.adds.size());
    CountWrites({ExchangePlace::Where::kRecv, 0, sum.to}, sum.count);
    for (int64_t i = 0; i < sum.count; ++i) {
      std::vector<float> stack;
      for (size_t n = 0; n < sum.nodes.size(); ++n) {
        stack.push_back(At(sum.nodes[n])[i]);
        ASSERT_LE(static_cast<int32_t>(stack.size()), plan.depth);
        for (int add = plan.adds[n]; add > 0; --add) {
          const float right = stack.back();
          stack.pop_back();
          stack.back() = stack.back() + right;
        }
      }
      ASSERT_EQ(stack.size(), 1u);
      recv[sum.to + i] = stack[0];
    }
  }
};

struct Case {
  Kind kind;
  int32_t lanes;
  int32_t size;
  int64_t count;
  Result result;
};

std::string Name(const Case& c) {
  return std::string(NameOf(c.kind)) + " lanes " + std::to_string(c.lanes) + " ranks " +
         std::to_string(c.size) + " count " + std::to_string(c.count) + " result " +
         std::to_string(static_cast<int>(c.result));
}

std::vector<Rank> PlanRanks(const Case& c, const std::vector<Holding>& shares) {
  std::vector<Rank> ranks(c.size);
  for (int32_t r = 0; r < c.size; ++r) {
    Rank& rank = ranks[r];
    ExchangeCall call;
    call.kind = c.kind;
    call.count = c.count;
    call.element = sizeof(float);
    call.lanes = c.lanes;
    call.rank = r;
    call.size = c.size;
    call.recv_is_free = c.kind == Kind::kAllReduce && c.result == Result::kApart;
    rank.plan = PlanExchange(call);
    rank.held = shares[r];
    const int64_t received =
        c.kind == Kind::kAllReduce ? c.count : ChunkOf(c.count, c.size, r).size;
    rank.apart.assign(received, kGarbage);
    rank.scratch.assign(rank.plan.scratch, kGarbage);
    rank.recv_writes.assign(received, 0);
    rank.scratch_writes.assign(rank.plan.scratch, 0);
  }
  // Only now, as the vectors stay where they are.
  for (Rank& rank : ranks) {
    rank.recv = rank.apart.data();
    if (c.result == Result::kOverFirst) rank.recv = rank.held.sums.front().data();
    if (c.result == Result::kOverLast) rank.recv = rank.held.sums.back().data();
  }
  return ranks;
}

void Exchange(std::vector<Rank>& ranks) {
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<float>>> messages;
  const int32_t size = static_cast<int32_t>(ranks.size());
  for (int32_t r = 0; r < size; ++r) {
    for (const ExchangeSend& send : ranks[r].plan.sends) {
      ASSERT_NE(send.peer, r);
      const float* from = ranks[r].held.sums[send.partial].data() + send.begin;
      messages[{r, send.peer}].emplace_back(from, from + send.count);
    }
  }
  for (int32_t r = 0; r < size; ++r) {
    for (const ExchangeRecv& recv : ranks[r].plan.recvs) {
      auto& queue = messages[{recv.peer, r}];
      ASSERT_FALSE(queue.empty());
      ASSERT_EQ(static_cast<int64_t>(queue.front().size()), recv.count);
      ranks[r].CountWrites(recv.to, recv.count);
      std::memcpy(ranks[r].At(recv.to), queue.front().data(), recv.count * sizeof(float));
      queue.pop_front();
    }
  }
  for (const auto& [pair, queue] : messages) EXPECT_TRUE(queue.empty());
}

void Run(std::vector<Rank>& ranks) {
  ASSERT_NO_FATAL_FAILURE(Exchange(ranks));
  for (Rank& rank : ranks) {
    for (const ExchangeSum& sum : rank.plan.sums) ASSERT_NO_FATAL_FAILURE(rank.Add(sum));
    for (const auto* writes : {&rank.recv_writes, &rank.scratch_writes}) {
      for (const int times : *writes) ASSERT_LE(times, 1);
    }
  }
  for (Rank& rank : ranks) {
    ASSERT_EQ(rank.plan.gather, ranks[0].plan.gather);
    const int64_t chunk = rank.plan.gather;
    for (size_t from = 0; chunk > 0 && from < ranks.size(); ++from) {
      std::memmove(rank.recv + from * chunk, ranks[from].recv + from * chunk,
                   chunk * sizeof(float));
    }
  }
}

void CheckCase(const Case& c, const std::vector<Holding>& shares,
               const std::vector<float>& expected) {
  SCOPED_TRACE(Name(c));
  std::vector<Rank> ranks = PlanRanks(c, shares);
  ASSERT_NO_FATAL_FAILURE(Run(ranks));
  for (int32_t r = 0; r < c.size; ++r) {
    const Chunk own = c.kind == Kind::kAllReduce ? Chunk{0, c.count} : ChunkOf(c.count, c.size, r);
    ASSERT_TRUE(own.size == 0 || std::memcmp(ranks[r].recv, expected.data() + own.begin,
                                             own.size * sizeof(float)) == 0)
        << "rank " << r;
  }
}

// None, fewer than ranks, odd, around the limit of the short way, more than it.
constexpr int64_t kCounts[] = {0, 1, 2, 5, 37, 2049, 8192, 8193, 20011};

TEST(OrderedExchange, AllRanksTogether_GiveTheBitsOfTheTree) {
  for (int32_t lanes = 1; lanes <= 13; ++lanes) {
    for (const int64_t count : kCounts) {
      const auto values = LaneValues(lanes, count);
      const auto expected = NodeValue(lanes, {0, lanes}, values);
      for (int32_t size = 1; size <= std::min(lanes, 6); ++size) {
        const auto shares = Share(lanes, size, values);
        for (const Result result : {Result::kApart, Result::kOverFirst, Result::kOverLast}) {
          ASSERT_NO_FATAL_FAILURE(
              CheckCase({Kind::kAllReduce, lanes, size, count, result}, shares, expected));
        }
        ASSERT_NO_FATAL_FAILURE(CheckCase(
            {Kind::kReduceScatter, lanes, size, count, Result::kApart}, shares, expected));
      }
    }
  }
}

std::vector<float> OnHost(int32_t lanes, int32_t size, int64_t count,
                          const std::vector<Holding>& shares) {
  Group group = MakeInProcessGroup(size);
  std::vector<float> result;
  const auto statuses = OnRanks(group, [&](Communicator& rank) {
    const Holding& held = shares[rank.rank()];
    std::vector<Partial> partials;
    for (size_t i = 0; i < held.nodes.size(); ++i) {
      partials.push_back({held.nodes[i], held.sums[i].data()});
    }
    std::vector<float> recv(count);
    CollectiveCall call;
    call.kind = Kind::kAllReduce;
    call.count = count;
    call.recv = recv.data();
    call.order = Order::kOrdered;
    call.lanes = lanes;
    call.partials = partials;
    RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
    if (rank.rank() == 0) result = recv;
    return absl::OkStatus();
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return result;
}

TEST(OrderedExchange, AnyNumberOfRanks_GivesTheBitsOfTheHost) {
  constexpr int32_t kLanes = 12;
  constexpr int64_t kCount = 20011;
  const auto values = LaneValues(kLanes, kCount);
  const auto host = OnHost(kLanes, 3, kCount, Share(kLanes, 3, values));
  for (const int32_t size : {1, 2, 3, 4, 6}) {
    ASSERT_NO_FATAL_FAILURE(CheckCase({Kind::kAllReduce, kLanes, size, kCount, Result::kApart},
                                      Share(kLanes, size, values), host));
  }
}

TEST(OrderedExchange, OneNodeEach_NeedsTheTailOnly) {
  ExchangeCall call;
  call.count = 4 * 64 * 100 + 3;
  call.lanes = call.size = 4;
  call.rank = 2;
  call.recv_is_free = true;
  OrderedExchange plan = PlanExchange(call);
  EXPECT_EQ(plan.gather, 64 * 100);
  EXPECT_EQ(plan.scratch, 3 * 64);  // three peers' tails, each at a multiple of 256 bytes
  call.count -= 3;
  plan = PlanExchange(call);
  EXPECT_EQ(plan.scratch, 0);
  int64_t sent = 0;
  for (const ExchangeSend& send : plan.sends) sent += send.count;
  EXPECT_EQ(sent, 3 * 64 * 100);
  EXPECT_EQ(plan.depth, 3);
  EXPECT_EQ(plan.adds, (std::vector<uint8_t>{0, 1, 0, 2}));
}

TEST(OrderedExchange, ResultOverAPartial_PutsNothingIntoIt) {
  ExchangeCall call;
  call.count = 50000;
  call.lanes = call.size = 3;
  call.recv_is_free = false;
  for (const ExchangeRecv& recv : PlanExchange(call).recvs) {
    EXPECT_EQ(recv.to.where, ExchangePlace::Where::kScratch);
  }
}

}  // namespace
}  // namespace weft::comm
