// The fixed tree over lane numbers in which partial sums meet, whoever holds them: its nodes are
// the ranges [i*2^k, (i+1)*2^k) cut to [0, lanes). A node's value is left child + right child (a
// child cut to nothing is absent). Pure integer arithmetic; every process computes the same.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// Lanes [begin, end).
struct LaneRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  friend bool operator==(const LaneRange&, const LaneRange&) = default;
};

// The contiguous share of `rank` among `ranks`; sizes differ by at most one, larger shares first.
// Requires 0 < ranks <= lanes.
LaneRange OwnedLanes(int32_t lanes, int32_t ranks, int32_t rank);

// The maximal nodes of the tree that lie in `range`, in lane order: what a rank holding `range` can
// add up on its own.
std::vector<LaneRange> MaximalNodes(int32_t lanes, LaneRange range);

// The smallest node that holds more than `node`, or `node` itself at the root.
LaneRange ParentNode(int32_t lanes, LaneRange node);

// One addition into[left] += [right]; `left` ends as their parent's value.
struct TreeAdd {
  int32_t left = 0;  // index into the list of nodes handed to TreeSchedule
  int32_t right = 0;
};

// The additions that turn the values of `nodes` (disjoint tree nodes in lane order that together
// cover a node) into the value of that node, in an order that needs no extra buffers: afterwards
// nodes[0] holds it.
std::vector<TreeAdd> TreeSchedule(int32_t lanes, const std::vector<LaneRange>& nodes);

}  // namespace weft
