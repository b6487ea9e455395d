#include "tests/comm/lane_values.h"

#include <cmath>
#include <random>

namespace weft::comm {

std::vector<std::vector<float>> LaneValues(int32_t lanes, int64_t count) {
  std::mt19937_64 random(lanes * 1000003 + count);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> values(lanes, std::vector<float>(count));
  for (auto& lane : values) {
    for (float& value : lane) value = std::ldexp(normal(random), static_cast<int>(random() % 16));
  }
  return values;
}

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

std::vector<Holding> Share(int32_t lanes, int32_t size,
                           const std::vector<std::vector<float>>& values) {
  std::vector<Holding> shares(size);
  for (int32_t rank = 0; rank < size; ++rank) {
    shares[rank].nodes = MaximalNodes(lanes, OwnedLanes(lanes, size, rank));
    for (const LaneRange node : shares[rank].nodes) {
      shares[rank].sums.push_back(NodeValue(lanes, node, values));
    }
  }
  return shares;
}

}  // namespace weft::comm
