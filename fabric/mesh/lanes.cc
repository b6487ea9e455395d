#include "fabric/mesh/lanes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

// The divisors of `batch` next to `lanes` on both sides.
std::vector<int64_t> NearestDivisors(int64_t batch, int32_t lanes) {
  std::vector<int64_t> found;
  for (int64_t d = lanes - 1; d >= 1; --d) {
    if (batch % d == 0) {
      found.push_back(d);
      break;
    }
  }
  for (int64_t d = lanes + 1; d <= std::min<int64_t>(batch, kMostLanes); ++d) {
    if (batch % d == 0) {
      found.push_back(d);
      break;
    }
  }
  return found;
}

}  // namespace

Status CheckBatch(int64_t batch, int32_t lanes) {
  if (batch < 1) return InvalidArgument("is ", batch, ", wants at least 1");
  if (lanes < 1 || lanes > kMostLanes) {
    return InvalidArgument("cannot be cut into ", lanes, " lanes; lanes go from 1 to ", kMostLanes);
  }
  if (batch % lanes == 0) return absl::OkStatus();
  const int64_t below = batch / lanes * lanes;
  const std::string batches =
      below > 0 ? absl::StrCat(below, " or ", below + lanes) : absl::StrCat(below + lanes);
  return InvalidArgument(batch, " does not divide into ", lanes, " lanes; ", batches,
                         " would, and so would ",
                         absl::StrJoin(NearestDivisors(batch, lanes), " or "), " lanes");
}

StatusOr<std::vector<LaneRange>> ShareLanes(int32_t lanes, int32_t ranks) {
  if (ranks < 1) return InvalidArgument(ranks, " ranks: at least 1");
  if (ranks > lanes) {
    return InvalidArgument(ranks, " ranks cannot share ", lanes,
                           " lanes: a rank holds whole lanes; use at most ", lanes,
                           " ranks or at least ", ranks, " lanes");
  }
  std::vector<LaneRange> shares;
  for (int32_t rank = 0; rank < ranks; ++rank) shares.push_back(OwnedLanes(lanes, ranks, rank));
  return shares;
}

int32_t PeakPartials(int32_t lanes, LaneRange range) {
  std::vector<LaneRange> held;
  int32_t peak = 0;
  for (int32_t lane = range.begin; lane < range.end; ++lane) {
    held.push_back({lane, lane + 1});
    peak = std::max(peak, static_cast<int32_t>(held.size()));
    // What is held so far, with siblings added up.
    held = MaximalNodes(lanes, {range.begin, lane + 1});
  }
  return peak;
}

int64_t ReduceWireBytes(int32_t lanes, const std::vector<LaneRange>& shares, ReduceMode mode,
                        int64_t bytes) {
  const int64_t ranks = static_cast<int64_t>(shares.size());
  if (ranks <= 1) return 0;
  const int64_t others = bytes / ranks * (ranks - 1);
  if (mode == ReduceMode::kRing) return 2 * others;
  size_t partials = 0;
  for (const LaneRange& share : shares) {
    partials = std::max(partials, MaximalNodes(lanes, share).size());
  }
  return (static_cast<int64_t>(partials) + 1) * others;
}

}  // namespace weft
