// Collectives as schedules: what one rank sends, receives and adds. Every transport runs these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/comm/collective.h"
#include "fabric/comm/schedule.h"

namespace weft::comm {

// One call as its algorithm sees it. CheckCall has passed.
struct Task {
  const CollectiveCall& call;
  int32_t rank = 0;
  int32_t size = 1;
  Schedule& schedule;
  std::vector<std::byte>& scratch;  // kept between calls; an algorithm grows it as it needs

  int64_t element() const { return static_cast<int64_t>(SizeOf(call.dtype)); }
};

// all_gather, broadcast, all_to_all, send, recv, barrier. What stays on the rank is copied at once.
void BuildMove(const Task& task);

// all_reduce and reduce_scatter around the ring of ranks: chunk by chunk, sent on piece by piece
// while it is being added to.
void BuildRing(const Task& task);

// all_reduce and reduce_scatter in the lane tree: each chunk's partials go to its owner, who adds
// them block by block in tree order; all_reduce then gathers. Small all_reduces give all partials
// to all ranks instead. The same bits at any number of ranks that holds the same lanes.
void BuildOrdered(const Task& task);

}  // namespace weft::comm
