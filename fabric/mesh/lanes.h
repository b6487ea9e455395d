// How a batch is cut into lanes, lanes into ranks, and what that costs on the wire. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/lane_tree.h"
#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"

namespace weft {

inline constexpr int32_t kMostLanes = 65536;

// InvalidArgument when `batch` does not divide into `lanes`; names the nearest batches and lane
// counts that would do.
Status CheckBatch(int64_t batch, int32_t lanes);

// Each rank's lanes. InvalidArgument when there are more ranks than lanes.
StatusOr<std::vector<LaneRange>> ShareLanes(int32_t lanes, int32_t ranks);

// How many buffers a rank holds at once while it adds up the partials of its lanes one after the
// other: at most about log2 of their number.
int32_t PeakPartials(int32_t lanes, LaneRange range);

// Bytes that the busiest rank sends to reduce `bytes` over all ranks. Ordered: its partials to the
// owners of the other chunks, then its own chunk to everybody.
int64_t ReduceWireBytes(int32_t lanes, const std::vector<LaneRange>& shares, ReduceMode mode,
                        int64_t bytes);

}  // namespace weft
