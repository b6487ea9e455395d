#include <algorithm>
#include <cstring>
#include <memory>

#include "fabric/base/lane_tree.h"
#include "fabric/comm/add.h"
#include "fabric/comm/algorithms.h"
#include "fabric/comm/call_check.h"

namespace weft::comm {
namespace {

// Blocks of a chunk are added while later ones travel. A block of each partial fits the L2 cache
// together.
constexpr int64_t kBlock = 64 << 10;
// Blocks that a rank may hold before it must have added the oldest.
constexpr int32_t kDepth = 4;
// Up to here (bytes) an all_reduce gives every partial to everyone: one hop instead of two.
constexpr int64_t kSmall = 8 << 10;

// The nodes of all ranks in lane order, and the additions that join them.
struct Tree {
  std::vector<LaneRange> nodes;
  std::vector<int32_t> first;  // by rank, and one more: nodes [first[r], first[r + 1]) are rank r's
  std::vector<TreeAdd> adds;
};

Tree TreeOf(const Task& task) {
  const int32_t lanes = LanesOf(task.call, task.size);
  Tree tree;
  for (int32_t rank = 0; rank < task.size; ++rank) {
    tree.first.push_back(static_cast<int32_t>(tree.nodes.size()));
    for (const LaneRange node : MaximalNodes(lanes, OwnedLanes(lanes, task.size, rank))) {
      tree.nodes.push_back(node);
    }
  }
  tree.first.push_back(static_cast<int32_t>(tree.nodes.size()));
  tree.adds = TreeSchedule(lanes, tree.nodes);
  return tree;
}

// This rank's partials, in order.
std::vector<const std::byte*> OwnPartials(const CollectiveCall& call) {
  std::vector<const std::byte*> own;
  for (const Partial& partial : call.partials) {
    own.push_back(static_cast<const std::byte*>(partial.data));
  }
  if (own.empty()) own.push_back(static_cast<const std::byte*>(call.send));
  return own;
}

// Adds one range of all nodes in tree order. A node's value is read from where it is; sums go to
// the node's slot, the last one to the result.
class TreeSum {
 public:
  TreeSum(DType dtype, const Tree& tree) : dtype_(dtype), adds_(tree.adds) {
    values_.resize(tree.nodes.size());
  }

  // sources[n] is node n's value, slots[n] room for a sum (may be the source itself).
  void Run(const std::vector<const std::byte*>& sources, const std::vector<std::byte*>& slots,
           std::byte* result, int64_t bytes) {
    // Small steps, so that sums in between stay in the L1 cache.
    constexpr int64_t kStep = 4 << 10;
    for (int64_t at = 0; at < bytes; at += kStep) {
      const int64_t size = std::min(kStep, bytes - at);
      for (size_t n = 0; n < values_.size(); ++n) values_[n] = sources[n] + at;
      for (size_t i = 0; i < adds_.size(); ++i) {
        const TreeAdd add = adds_[i];
        std::byte* to = (i + 1 == adds_.size() ? result : slots[add.left]) + at;
        Add(dtype_, to, values_[add.left], values_[add.right], size);
        values_[add.left] = to;
      }
      if (adds_.empty()) std::memmove(result + at, values_[0], size);
    }
  }

 private:
  DType dtype_;
  std::vector<TreeAdd> adds_;
  std::vector<const std::byte*> values_;
};

// Everything about one rank's chunk that a reduction of a block needs.
struct OwnedChunk {
  OwnedChunk(DType dtype, const Tree& tree) : sum(dtype, tree) {}

  TreeSum sum;
  std::vector<const std::byte*> own;  // partials at the chunk's begin
  int32_t own_first = 0;              // node of own[0]
  size_t nodes = 0;
  std::byte* slots = nullptr;  // [kDepth][nodes][block]
  std::byte* result = nullptr;
  int64_t bytes = 0;
  int64_t block = 0;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> rooms;

  std::byte* Slot(int32_t b, int32_t node) const {
    return slots + ((b % kDepth) * static_cast<int64_t>(nodes) + node) * block;
  }
  int64_t BytesOf(int32_t b) const { return std::min(block, bytes - b * block); }

  void Reduce(int32_t b) {
    sources.resize(nodes);
    rooms.resize(nodes);
    for (size_t n = 0; n < nodes; ++n) {
      rooms[n] = Slot(b, static_cast<int32_t>(n));
      sources[n] = rooms[n];
    }
    for (size_t i = 0; i < own.size(); ++i) sources[own_first + i] = own[i] + b * block;
    sum.Run(sources, rooms, result + b * block, BytesOf(b));
  }
};

std::shared_ptr<OwnedChunk> MakeOwnedChunk(const Task& task, const Tree& tree, Chunk chunk,
                                           std::byte* result, int64_t block, int32_t depth) {
  auto owned = std::make_shared<OwnedChunk>(task.call.dtype, tree);
  for (const std::byte* partial : OwnPartials(task.call)) {
    owned->own.push_back(partial + chunk.begin * task.element());
  }
  owned->own_first = tree.first[task.rank];
  owned->nodes = tree.nodes.size();
  owned->result = result;
  owned->bytes = chunk.size * task.element();
  owned->block = block;
  const size_t need = static_cast<size_t>(depth * static_cast<int64_t>(owned->nodes) * block);
  task.scratch.resize(std::max(task.scratch.size(), need));
  owned->slots = task.scratch.data();
  return owned;
}

// Everyone gets all partials whole and adds them.
void BuildSmall(const Task& task, const Tree& tree) {
  const CollectiveCall& call = task.call;
  const int64_t bytes = call.count * task.element();
  if (bytes == 0) return;
  auto whole = MakeOwnedChunk(task, tree, {0, call.count}, static_cast<std::byte*>(call.recv),
                              bytes, /*depth=*/1);
  const int32_t reduce = task.schedule.Reduce(0, bytes);
  for (int32_t i = 1; i < task.size; ++i) {
    const int32_t peer = (task.rank + i) % task.size;
    for (const std::byte* partial : OwnPartials(call)) {
      // The sum may be written over a partial, which must have gone by then.
      task.schedule.SendFor(reduce, peer, partial, bytes);
    }
    for (int32_t n = tree.first[peer]; n < tree.first[peer + 1]; ++n) {
      task.schedule.RecvFor(reduce, peer, whole->Slot(0, n), bytes, Schedule::kNone);
    }
  }
  task.schedule.set_reduction([whole](int32_t b) { whole->Reduce(b); });
}

int32_t BlocksOf(int64_t bytes, int64_t block) {
  return static_cast<int32_t>((bytes + block - 1) / block);
}

// All streams follow one timetable: at time t, block t of the partials; then, from time kDepth on,
// block t - kDepth of the sums. What a step needs is earlier in the table, so nothing waits in a
// circle, and a sum has kDepth blocks of time to be made before its turn comes.
class Timetable {
 public:
  Timetable(const Task& task, const Tree& tree) : task_(task), tree_(tree) {}

  void Build() {
    const CollectiveCall& call = task_.call;
    const bool all = call.kind == Kind::kAllReduce;
    const Chunk own = ChunkOf(call.count, task_.size, task_.rank);
    std::byte* result = static_cast<std::byte*>(call.recv);
    if (all && own.size > 0) result += own.begin * task_.element();
    const int64_t widest = ChunkOf(call.count, task_.size, 0).size * task_.element();
    block_ = std::min(kBlock, widest);
    if (widest == 0) return;
    owned_ = MakeOwnedChunk(task_, tree_, own, result, block_, kDepth);
    partials_ = OwnPartials(call);
    const int32_t blocks = BlocksOf(widest, block_);
    for (int32_t t = 0; t < blocks + (all ? kDepth : 0); ++t) {
      AddReduce(t);
      for (int32_t i = 1; i < task_.size; ++i) {
        const int32_t peer = (task_.rank + i) % task_.size;
        AddPartials(peer, t);
        if (all && t >= kDepth) AddSums(peer, t - kDepth);
      }
    }
    task_.schedule.set_reduction([owned = owned_](int32_t b) { owned->Reduce(b); });
  }

 private:
  struct Range {
    int64_t begin = 0;  // bytes from the start of the whole
    int64_t bytes = 0;
  };
  // Block t of the chunk that `rank` owns.
  Range BlockOf(int32_t rank, int32_t t) const {
    const Chunk chunk = ChunkOf(task_.call.count, task_.size, rank);
    const int64_t begin = std::min(t * block_, chunk.size * task_.element());
    const int64_t end = std::min(begin + block_, chunk.size * task_.element());
    return {chunk.begin * task_.element() + begin, end - begin};
  }

  void AddReduce(int32_t t) {
    const int64_t bytes = BlockOf(task_.rank, t).bytes;
    if (bytes > 0) reduces_.push_back(task_.schedule.Reduce(t, bytes));
  }

  void AddPartials(int32_t peer, int32_t t) {
    const Range out = BlockOf(peer, t);
    if (out.bytes > 0) {
      for (const std::byte* partial : partials_) {
        task_.schedule.Send(peer, partial + out.begin, out.bytes);
      }
    }
    const int64_t bytes = BlockOf(task_.rank, t).bytes;
    if (bytes == 0) return;
    // The slot is free once the block that had it is added.
    const int32_t free = t >= kDepth ? reduces_[t - kDepth] : Schedule::kNone;
    for (int32_t n = tree_.first[peer]; n < tree_.first[peer + 1]; ++n) {
      task_.schedule.RecvFor(reduces_[t], peer, owned_->Slot(t, n), bytes, free);
    }
  }

  void AddSums(int32_t peer, int32_t t) {
    std::byte* recv = static_cast<std::byte*>(task_.call.recv);
    const Range own = BlockOf(task_.rank, t);
    if (own.bytes > 0) {
      task_.schedule.Send(peer, recv + own.begin, own.bytes, reduces_[t]);
    }
    const Range theirs = BlockOf(peer, t);
    if (theirs.bytes > 0) task_.schedule.Recv(peer, recv + theirs.begin, theirs.bytes);
  }

  const Task& task_;
  const Tree& tree_;
  int64_t block_ = 0;
  std::vector<const std::byte*> partials_;
  std::vector<int32_t> reduces_;  // by block of the own chunk
  std::shared_ptr<OwnedChunk> owned_;
};

}  // namespace

void BuildOrdered(const Task& task) {
  const Tree tree = TreeOf(task);
  if (task.call.kind == Kind::kAllReduce && task.call.count * task.element() <= kSmall) {
    BuildSmall(task, tree);
    return;
  }
  Timetable(task, tree).Build();
}

}  // namespace weft::comm
