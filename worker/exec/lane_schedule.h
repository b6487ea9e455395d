// In which buffer each local lane's partial goes and what is added to what, so that few buffers
// hold a rank's share of the lane tree. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/lane_tree.h"

namespace weft {

struct BufferAdd {
  int into = 0;
  int from = 0;  // free afterwards
};

struct LaneStep {
  int32_t lane = 0;
  int buffer = 0;               // where its partial is computed
  std::vector<BufferAdd> adds;  // to run after it, in order
};

struct HeldNode {
  LaneRange node;
  int buffer = 0;
};

struct LaneSchedule {
  std::vector<LaneStep> steps;
  std::vector<HeldNode>
      nodes;  // what is held after all steps: the range's maximal nodes in lane order
  int buffers = 0;
};

LaneSchedule MakeLaneSchedule(int32_t lanes, LaneRange range);

}  // namespace weft
