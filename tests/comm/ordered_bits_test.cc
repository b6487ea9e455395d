// Ordered reductions give the same bits however many ranks share the lanes, on every backend.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/base/lane_tree.h"
#include "tests/comm/test_group.h"

namespace weft::comm {
namespace {

// Values of many magnitudes, so that another order of additions shows.
std::vector<std::vector<float>> LaneValues(int32_t lanes, int64_t count) {
  std::mt19937_64 random(lanes * 1000003 + count);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> values(lanes, std::vector<float>(count));
  for (auto& lane : values) {
    for (float& value : lane) value = normal(random) * std::pow(10.0f, normal(random));
  }
  return values;
}

// The value of `node`, by the tree's definition.
std::vector<float> NodeValue(int32_t lanes, LaneRange node,
                             const std::vector<std::vector<float>>& values) {
  std::vector<LaneRange> leaves;
  std::vector<std::vector<float>> sums;
  for (int32_t lane = node.begin; lane < node.end; ++lane) {
    leaves.push_back({lane, lane + 1});
    sums.push_back(values[lane]);
  }
  for (const TreeAdd add : TreeSchedule(lanes, leaves)) {
    for (size_t i = 0; i < sums[0].size(); ++i) sums[add.left][i] += sums[add.right][i];
  }
  return sums[0];
}

enum class Place { kApart, kOverFirst, kOverLast };

struct Input {
  std::vector<std::vector<float>> data;
  std::vector<Partial> partials;
};

Input PartialsOf(int32_t lanes, const Communicator& rank,
                 const std::vector<std::vector<float>>& values) {
  Input input;
  const auto nodes = MaximalNodes(lanes, OwnedLanes(lanes, rank.size(), rank.rank()));
  for (const LaneRange node : nodes) input.data.push_back(NodeValue(lanes, node, values));
  for (size_t i = 0; i < nodes.size(); ++i) {
    input.partials.push_back({nodes[i], input.data[i].data()});
  }
  return input;
}

Status Check(Communicator& rank, int32_t lanes, const std::vector<std::vector<float>>& values,
             const std::vector<float>& expected, Kind kind, Place place) {
  const int64_t count = static_cast<int64_t>(expected.size());
  const Chunk own =
      kind == Kind::kAllReduce ? Chunk{0, count} : ChunkOf(count, rank.size(), rank.rank());
  Input input = PartialsOf(lanes, rank, values);
  std::vector<float> apart(own.size);
  float* recv = apart.data();
  if (place == Place::kOverFirst) recv = input.data.front().data();
  if (place == Place::kOverLast) recv = input.data.back().data();
  CollectiveCall call;
  call.kind = kind;
  call.dtype = DType::kF32;
  call.count = count;
  call.recv = recv;
  call.order = Order::kOrdered;
  call.lanes = lanes;
  call.partials = input.partials;
  RETURN_IF_ERROR(rank.Launch(call, {}, TestDeadline()));
  if (own.size > 0 &&
      std::memcmp(recv, expected.data() + own.begin, own.size * sizeof(float)) != 0) {
    return Internal("other bits: ", ToString(call), " on ", rank.size(), " ranks");
  }
  return absl::OkStatus();
}

class OrderedBits : public testing::TestWithParam<std::string> {};

TEST_P(OrderedBits, AnyNumberOfRanks_GivesTheBitsOfTheTree) {
  for (const int32_t lanes : {12, 7}) {
    for (const int64_t count : {1, 333, 2049, 70001, 300007}) {
      const auto values = LaneValues(lanes, count);
      const auto expected = NodeValue(lanes, {0, lanes}, values);
      for (const int32_t size : {1, 2, 3, 4, 6}) {
        StatusOr<Group> group = MakeGroup(GetParam(), size);
        ASSERT_TRUE(group.ok()) << group.status();
        const auto results = OnRanks(*group, [&](Communicator& rank) {
          for (const Place place : {Place::kApart, Place::kOverFirst, Place::kOverLast}) {
            RETURN_IF_ERROR(Check(rank, lanes, values, expected, Kind::kAllReduce, place));
          }
          return Check(rank, lanes, values, expected, Kind::kReduceScatter, Place::kApart);
        });
        for (const Status& status : results) {
          ASSERT_TRUE(status.ok()) << status << " lanes " << lanes << " count " << count;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OrderedBits, testing::Values("in_process", "shm", "tcp"));

}  // namespace
}  // namespace weft::comm
