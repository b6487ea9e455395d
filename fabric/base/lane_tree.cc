#include "fabric/base/lane_tree.h"

#include <algorithm>

#include "fabric/base/check.h"

namespace weft {
namespace {

// The uncut width of a node: the power of two that its begin and size belong to.
int32_t Width(LaneRange node) {
  int32_t width = 1;
  while (width < node.size()) width *= 2;
  return width;
}

LaneRange NodeAt(int32_t lanes, int32_t begin, int32_t width) {
  return {begin, std::min(lanes, begin + width)};
}

}  // namespace

LaneRange OwnedLanes(int32_t lanes, int32_t ranks, int32_t rank) {
  WEFT_CHECK(0 < ranks && ranks <= lanes && 0 <= rank && rank < ranks);
  const int32_t base = lanes / ranks, extra = lanes % ranks;
  const int32_t begin = rank * base + std::min(rank, extra);
  return {begin, begin + base + (rank < extra ? 1 : 0)};
}

std::vector<LaneRange> MaximalNodes(int32_t lanes, LaneRange range) {
  std::vector<LaneRange> nodes;
  int32_t at = range.begin;
  while (at < range.end) {
    int32_t width = 1;
    // Grow while the next node up starts here and does not reach past the range; a node that the
    // tree's end cuts counts by its cut size.
    while (width < lanes && at % (2 * width) == 0 && std::min(lanes, at + 2 * width) <= range.end) {
      width *= 2;
    }
    nodes.push_back(NodeAt(lanes, at, width));
    at = nodes.back().end;
  }
  return nodes;
}

LaneRange ParentNode(int32_t lanes, LaneRange node) {
  int32_t width = Width(node);
  LaneRange parent = node;
  while (parent == node && !(parent.begin == 0 && parent.end == lanes)) {
    width *= 2;
    parent = NodeAt(lanes, node.begin / width * width, width);
  }
  return parent;
}

std::vector<TreeAdd> TreeSchedule(int32_t lanes, const std::vector<LaneRange>& nodes) {
  struct Pending {
    LaneRange node;
    int32_t index;
  };
  std::vector<TreeAdd> adds;
  std::vector<Pending> stack;
  for (size_t i = 0; i < nodes.size(); ++i) {
    stack.push_back({nodes[i], static_cast<int32_t>(i)});
    while (stack.size() >= 2) {
      Pending& left = stack[stack.size() - 2];
      const Pending right = stack.back();
      const LaneRange parent = ParentNode(lanes, left.node);
      // Siblings: together they are the whole parent.
      if (!(parent.begin == left.node.begin && parent.end == right.node.end)) break;
      if (ParentNode(lanes, right.node) != parent) break;
      adds.push_back({left.index, right.index});
      left.node = parent;
      stack.pop_back();
    }
  }
  WEFT_CHECK(stack.size() <= 1);
  return adds;
}

}  // namespace weft
