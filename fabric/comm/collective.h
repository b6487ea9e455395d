// The kinds of collective there are, and the one record that describes a call of any of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "fabric/base/dtype.h"
#include "fabric/base/lane_tree.h"

namespace weft::comm {

// Counts are elements. `count` below is CollectiveCall::count; W is the number of ranks.
enum class Kind : uint8_t {
  kAllReduce = 0,      // send[count] summed over ranks -> recv[count] on all
  kReduceScatter = 1,  // send[count] summed; rank r keeps its chunk (ChunkOf) -> recv
  kAllGather = 2,      // rank r gives its chunk of recv (ChunkOf) in send; recv[count] whole on all
  kBroadcast = 3,      // recv[count] of rank `peer` -> recv[count] on all; send is not used
  kAllToAll =
      4,      // chunk i of send[count] goes to rank i; recv holds chunk from i at i; count % W == 0
  kSend = 5,  // send[count] to `peer`
  kRecv = 6,  // recv[count] from `peer`
  kBarrier = 7,
};

struct KindRow {
  Kind kind;
  const char* name;
  bool reduces;
  bool point_to_point;
};
inline constexpr KindRow kKinds[] = {
    {Kind::kAllReduce, "all_reduce", true, false},
    {Kind::kReduceScatter, "reduce_scatter", true, false},
    {Kind::kAllGather, "all_gather", false, false},
    {Kind::kBroadcast, "broadcast", false, false},
    {Kind::kAllToAll, "all_to_all", false, false},
    {Kind::kSend, "send", false, true},
    {Kind::kRecv, "recv", false, true},
    {Kind::kBarrier, "barrier", false, false},
};

// Order of additions: by the lane tree (same bits at any W), or the backend's ring.
enum class Order : uint8_t { kOrdered = 0, kRing = 1 };

// A tree node's sum that this rank holds: `data` is count elements.
struct Partial {
  LaneRange node;
  const void* data = nullptr;
};

struct CollectiveCall {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kF32;  // reductions: f32, f64, i32, i64; the rest: any
  int64_t count = 0;
  const void* send = nullptr;
  void* recv = nullptr;  // may be `send` itself for all_reduce
  int32_t peer = -1;     // root of broadcast; partner of send and recv
  Order order = Order::kRing;
  // Ordered reductions over lanes: the tree's lanes and this rank's maximal nodes (MaximalNodes of
  // OwnedLanes). Empty `partials` with order kOrdered: one lane a rank, its partial is `send`.
  int32_t lanes = 0;
  absl::Span<const Partial> partials;
  const char* label = "";  // for errors and the recorder, e.g. "gradients"; outlives the call
};

// Elements [begin, begin + size) of `count` that rank `rank` owns: equal chunks of ceil(count /
// ranks), the last ones shorter or empty.
struct Chunk {
  int64_t begin = 0;
  int64_t size = 0;
};
Chunk ChunkOf(int64_t count, int32_t ranks, int32_t rank);

const char* NameOf(Kind kind);

// "all_reduce f32[1024] ordered 'gradients'".
std::string ToString(const CollectiveCall& call);

}  // namespace weft::comm
