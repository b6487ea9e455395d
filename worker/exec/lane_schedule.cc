#include "worker/exec/lane_schedule.h"

#include <algorithm>

namespace weft {

LaneSchedule MakeLaneSchedule(int32_t lanes, LaneRange range) {
  LaneSchedule schedule;
  std::vector<int> free;
  const auto take = [&] {
    if (free.empty()) return schedule.buffers++;
    const int buffer = free.back();
    free.pop_back();
    return buffer;
  };
  for (const LaneRange& node : MaximalNodes(lanes, range)) {
    std::vector<LaneRange> leaves;
    for (int32_t lane = node.begin; lane < node.end; ++lane) leaves.push_back({lane, lane + 1});
    const std::vector<TreeAdd> adds = TreeSchedule(lanes, leaves);
    std::vector<int> buffer_of(leaves.size());
    size_t next = 0;
    for (size_t i = 0; i < leaves.size(); ++i) {
      LaneStep step;
      step.lane = leaves[i].begin;
      step.buffer = buffer_of[i] = take();
      // The additions that lane i completes begin with one whose right side is lane i itself, so
      // this never runs ahead.
      for (; next < adds.size(); ++next) {
        const TreeAdd& add = adds[next];
        if (static_cast<size_t>(add.right) > i) break;
        const int from = buffer_of[static_cast<size_t>(add.right)];
        step.adds.push_back({buffer_of[static_cast<size_t>(add.left)], from});
        free.push_back(from);
      }
      schedule.steps.push_back(step);
    }
    schedule.nodes.push_back({node, buffer_of[0]});
  }
  return schedule;
}

}  // namespace weft
