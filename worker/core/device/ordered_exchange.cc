#include "worker/core/device/ordered_exchange.h"

#include <algorithm>

#include "fabric/base/check.h"
#include "fabric/base/lane_tree.h"

namespace weft {
namespace {

// Chunks and what is put in scratch memory begin at multiples of this many bytes.
constexpr int64_t kAlign = 256;
// Up to here (bytes) an all_reduce gives every partial to everyone: one exchange instead of two.
constexpr int64_t kSmall = 32 << 10;

// The nodes of all ranks in lane order; nodes [first[r], first[r + 1]) are rank r's.
struct Nodes {
  std::vector<LaneRange> all;
  std::vector<int32_t> first;
};

Nodes NodesOf(const ExchangeCall& call) {
  Nodes nodes;
  for (int32_t rank = 0; rank < call.size; ++rank) {
    nodes.first.push_back(static_cast<int32_t>(nodes.all.size()));
    for (const LaneRange node : MaximalNodes(call.lanes, OwnedLanes(call.lanes, call.size, rank))) {
      nodes.all.push_back(node);
    }
  }
  nodes.first.push_back(static_cast<int32_t>(nodes.all.size()));
  return nodes;
}

// TreeSchedule's additions as a program for a stack. It emits an addition as soon as both sides
// are there, which is when they are the two topmost.
void ProgramOf(int32_t lanes, const Nodes& nodes, OrderedExchange* plan) {
  const std::vector<TreeAdd> adds = TreeSchedule(lanes, nodes.all);
  std::vector<int32_t> stack;
  size_t next = 0;
  for (int32_t n = 0; n < static_cast<int32_t>(nodes.all.size()); ++n) {
    stack.push_back(n);
    plan->depth = std::max(plan->depth, static_cast<int32_t>(stack.size()));
    uint8_t count = 0;
    while (next < adds.size() && stack.size() >= 2 && stack.back() == adds[next].right &&
           stack[stack.size() - 2] == adds[next].left) {
      stack.pop_back();
      ++next;
      ++count;
    }
    plan->adds.push_back(count);
  }
  WEFT_CHECK(next == adds.size() && stack.size() == 1);
}

class Planner {
 public:
  explicit Planner(const ExchangeCall& call) : call_(call), nodes_(NodesOf(call)) {
    ProgramOf(call.lanes, nodes_, &plan_);
  }

  OrderedExchange AllReduce() {
    int64_t chunk = call_.count / call_.size / align() * align();
    if (call_.size == 1 || call_.count * call_.element <= kSmall) chunk = 0;
    const int64_t tail = chunk * call_.size;
    for (int32_t i = 1; i < call_.size; ++i) {
      const int32_t to = (call_.rank + i) % call_.size;
      Send(to, to * chunk, chunk);
      Send(to, tail, call_.count - tail);
    }
    Receive(call_.rank * chunk, call_.rank * chunk, chunk, call_.recv_is_free ? chunk : 0);
    Receive(tail, tail, call_.count - tail, /*holes=*/0);
    plan_.gather = chunk;
    return std::move(plan_);
  }

  OrderedExchange ReduceScatter() {
    for (int32_t i = 1; i < call_.size; ++i) {
      const int32_t to = (call_.rank + i) % call_.size;
      const comm::Chunk chunk = comm::ChunkOf(call_.count, call_.size, to);
      Send(to, chunk.begin, chunk.size);
    }
    const comm::Chunk own = comm::ChunkOf(call_.count, call_.size, call_.rank);
    Receive(own.begin, /*to=*/0, own.size, /*holes=*/0);
    return std::move(plan_);
  }

 private:
  int64_t align() const { return kAlign / call_.element; }

  void Send(int32_t peer, int64_t begin, int64_t count) {
    if (count == 0) return;
    const int32_t own = nodes_.first[call_.rank + 1] - nodes_.first[call_.rank];
    for (int32_t p = 0; p < own; ++p) plan_.sends.push_back({peer, p, begin, count});
  }

  // The partials of elements [begin, begin + count) come and are added into recv + to. `holes`: the
  // chunks of other ranks in recv, each of so many elements, are free until the gather.
  void Receive(int64_t begin, int64_t to, int64_t count, int64_t holes) {
    if (count == 0) return;
    ExchangeSum sum;
    sum.to = to;
    sum.count = count;
    for (int32_t rank = 0; rank < call_.size; ++rank) {
      for (int32_t n = nodes_.first[rank]; n < nodes_.first[rank + 1]; ++n) {
        if (rank == call_.rank) {
          sum.nodes.push_back({ExchangePlace::Where::kPartial, n - nodes_.first[rank], begin});
          continue;
        }
        const bool hole = holes > 0 && n == nodes_.first[rank];
        sum.nodes.push_back(hole ? ExchangePlace{ExchangePlace::Where::kRecv, 0, rank * holes}
                                 : Scratch(count));
        plan_.recvs.push_back({rank, sum.nodes.back(), count});
      }
    }
    plan_.sums.push_back(std::move(sum));
  }

  ExchangePlace Scratch(int64_t count) {
    const int64_t at = plan_.scratch;
    plan_.scratch += (count + align() - 1) / align() * align();
    return {ExchangePlace::Where::kScratch, 0, at};
  }

  const ExchangeCall& call_;
  const Nodes nodes_;
  OrderedExchange plan_;
};

}  // namespace

OrderedExchange PlanExchange(const ExchangeCall& call) {
  Planner planner(call);
  return call.kind == comm::Kind::kAllReduce ? planner.AllReduce() : planner.ReduceScatter();
}

}  // namespace weft
