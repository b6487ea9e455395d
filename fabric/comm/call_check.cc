#include "fabric/comm/call_check.h"

#include <iterator>
#include <vector>

#include "fabric/comm/add.h"

namespace weft::comm {
namespace {

Status CheckPartials(const CollectiveCall& call, int32_t rank, int32_t size) {
  if (call.partials.empty()) return absl::OkStatus();
  if (call.lanes < size) {
    return InvalidArgument(call.lanes, " lanes cannot be shared by ", size,
                           " ranks: every rank needs one at least");
  }
  const std::vector<LaneRange> nodes = MaximalNodes(call.lanes, OwnedLanes(call.lanes, size, rank));
  if (nodes.size() != call.partials.size()) {
    return InvalidArgument("rank ", rank, " owns ", nodes.size(), " nodes of the tree over ",
                           call.lanes, " lanes, but gives ", call.partials.size(), " partials");
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Partial& partial = call.partials[i];
    if (partial.node != nodes[i]) {
      return InvalidArgument("partial ", i, " of rank ", rank, " is of lanes [", partial.node.begin,
                             ", ", partial.node.end, "), expected [", nodes[i].begin, ", ",
                             nodes[i].end, ")");
    }
    if (partial.data == nullptr && call.count > 0) {
      return InvalidArgument("partial ", i, " of rank ", rank, " has no data");
    }
  }
  return absl::OkStatus();
}

Status CheckPointers(const CollectiveCall& call, int32_t rank, int32_t size) {
  const Kind kind = call.kind;
  if (kind == Kind::kBarrier || call.count == 0) return absl::OkStatus();
  const bool from_partials = call.order == Order::kOrdered && !call.partials.empty();
  int64_t sends = call.count;
  int64_t recvs = call.count;
  if (kind == Kind::kAllGather) sends = ChunkOf(call.count, size, rank).size;
  if (kind == Kind::kReduceScatter) recvs = ChunkOf(call.count, size, rank).size;
  if (kind == Kind::kBroadcast || kind == Kind::kRecv || from_partials) sends = 0;
  if (kind == Kind::kSend) recvs = 0;
  if (sends > 0 && call.send == nullptr) return InvalidArgument("send is null");
  if (recvs > 0 && call.recv == nullptr) return InvalidArgument("recv is null");
  if (kind == Kind::kAllToAll && call.send == call.recv) {
    return InvalidArgument("all_to_all cannot work in place: send is recv");
  }
  return absl::OkStatus();
}

Status CheckRecord(const CollectiveCall& call, int32_t rank, int32_t size) {
  if (static_cast<size_t>(call.kind) >= std::size(kKinds)) return InvalidArgument("unknown kind");
  const KindRow& row = kKinds[static_cast<size_t>(call.kind)];
  if (call.kind == Kind::kBarrier) return absl::OkStatus();
  if (call.count < 0) return InvalidArgument("count is negative");
  if (static_cast<size_t>(call.dtype) >= std::size(kDTypes) || SizeOf(call.dtype) == 0) {
    return InvalidArgument("the dtype has no size");
  }
  if (row.reduces && !CanAdd(call.dtype)) {
    return InvalidArgument("reductions take f32, f64, i32 and i64, not ", NameOf(call.dtype));
  }
  if (row.point_to_point || call.kind == Kind::kBroadcast) {
    if (call.peer < 0 || call.peer >= size) {
      return InvalidArgument("rank ", call.peer, " is not in a group of ", size);
    }
    if (row.point_to_point && call.peer == rank) {
      return InvalidArgument("a rank cannot send to itself");
    }
  }
  if (call.kind == Kind::kAllToAll && call.count % size != 0) {
    return InvalidArgument("count must be a multiple of the ", size, " ranks");
  }
  RETURN_IF_ERROR(CheckPointers(call, rank, size));
  if (row.reduces && call.order == Order::kOrdered) return CheckPartials(call, rank, size);
  return absl::OkStatus();
}

}  // namespace

Status CheckCall(const CollectiveCall& call, int32_t rank, int32_t size) {
  const Status status = CheckRecord(call, rank, size);
  return status.ok() ? status : Annotate(status, ToString(call));
}

int32_t LanesOf(const CollectiveCall& call, int32_t size) {
  return call.partials.empty() ? size : call.lanes;
}

}  // namespace weft::comm
