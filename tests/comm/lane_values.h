// Lane values for ordered reductions, their sum by the tree's definition, and who holds what of it.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/lane_tree.h"

namespace weft::comm {

// By lane. Values of many magnitudes, so that another order of additions shows.
std::vector<std::vector<float>> LaneValues(int32_t lanes, int64_t count);

// The value of `node`, by the tree's definition.
std::vector<float> NodeValue(int32_t lanes, LaneRange node,
                             const std::vector<std::vector<float>>& values);

// What each rank of a group holds: the values of its nodes.
struct Holding {
  std::vector<LaneRange> nodes;
  std::vector<std::vector<float>> sums;
};

std::vector<Holding> Share(int32_t lanes, int32_t size,
                           const std::vector<std::vector<float>>& values);

}  // namespace weft::comm
