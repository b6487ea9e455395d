// Ordered reductions give the same bits however many ranks share the lanes, on every backend.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/base/lane_tree.h"
#include "tests/comm/lane_values.h"
#include "tests/comm/test_group.h"

namespace weft::comm {
namespace {

enum class Place { kApart, kOverFirst, kOverLast };

// `held` is a copy, as the result may lie over a partial.
Status Check(Communicator& rank, int32_t lanes, Holding held, const std::vector<float>& expected,
             Kind kind, Place place) {
  const int64_t count = static_cast<int64_t>(expected.size());
  const Chunk own =
      kind == Kind::kAllReduce ? Chunk{0, count} : ChunkOf(count, rank.size(), rank.rank());
  std::vector<Partial> partials;
  for (size_t i = 0; i < held.nodes.size(); ++i) {
    partials.push_back({held.nodes[i], held.sums[i].data()});
  }
  std::vector<float> apart(own.size);
  float* recv = apart.data();
  if (place == Place::kOverFirst) recv = held.sums.front().data();
  if (place == Place::kOverLast) recv = held.sums.back().data();
  CollectiveCall call;
  call.kind = kind;
  call.dtype = DType::kF32;
  call.count = count;
  call.recv = recv;
  call.order = Order::kOrdered;
  call.lanes = lanes;
  call.partials = partials;
  RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
  if (own.size > 0 &&
      std::memcmp(recv, expected.data() + own.begin, own.size * sizeof(float)) != 0) {
    return Internal("other bits: ", ToString(call), " on ", rank.size(), " ranks");
  }
  return absl::OkStatus();
}

class OrderedBits : public testing::TestWithParam<std::string> {};

TEST_P(OrderedBits, AnyNumberOfRanks_GivesTheBitsOfTheTree) {
  struct Row {
    int32_t lanes;
    int64_t count;
  };
  // One hop; two hops; more blocks than a rank holds at a time.
  const Row rows[] = {{12, 1}, {12, 333}, {12, 2049}, {12, 140003}, {7, 999}, {7, 30011}};
  for (const auto [lanes, count] : rows) {
    const auto values = LaneValues(lanes, count);
    const auto expected = NodeValue(lanes, {0, lanes}, values);
    for (const int32_t size : {1, 2, 3, 4, 6}) {
      StatusOr<Group> group = MakeGroup(GetParam(), size);
      ASSERT_TRUE(group.ok()) << group.status();
      const std::vector<Holding> shares = Share(lanes, size, values);
      const int32_t n = lanes;
      const auto results = OnRanks(*group, [&, n](Communicator& rank) {
        const Holding& held = shares[rank.rank()];
        for (const Place place : {Place::kApart, Place::kOverFirst, Place::kOverLast}) {
          RETURN_IF_ERROR(Check(rank, n, held, expected, Kind::kAllReduce, place));
        }
        return Check(rank, n, held, expected, Kind::kReduceScatter, Place::kApart);
      });
      for (const Status& status : results) {
        ASSERT_TRUE(status.ok()) << status << " lanes " << lanes << " count " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OrderedBits, testing::Values("in_process", "shm", "tcp"));

}  // namespace
}  // namespace weft::comm
