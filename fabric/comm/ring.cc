#include <algorithm>
#include <vector>

#include "fabric/comm/algorithms.h"

namespace weft::comm {
namespace {

// Bytes of a chunk that travel as one block. What a block adds stays in the cache until it is sent
// on.
constexpr int64_t kBlock = 128 << 10;

// A call's ring from the point of view of one rank. Block k of chunk c makes 2 * (size - 1) hops:
// in the first size - 1 each rank adds its share, and the owner of the chunk ends with the sum; in
// the rest the sum goes round.
class Ring {
 public:
  explicit Ring(const Task& task)
      : task_(task),
        next_((task.rank + 1) % task.size),
        previous_((task.rank - 1 + task.size) % task.size),
        send_(static_cast<const std::byte*>(task.call.send)),
        recv_(static_cast<std::byte*>(task.call.recv)),
        width_(ChunkOf(task.call.count, task.size, 0).size * task.element()) {}

  // At time t, hop h of block t - h: the blocks follow each other one hop apart, so that while one
  // waits for the rank before, the others move. Older blocks first, the same on all ranks.
  void Build() {
    const bool all = task_.call.kind == Kind::kAllReduce;
    const int32_t hops = all ? 2 * (task_.size - 1) : task_.size - 1;
    const int32_t blocks = static_cast<int32_t>((width_ + kBlock - 1) / kBlock);
    // Sums in passing have no place in a reduce_scatter's recv.
    if (!all) {
      const size_t need = width_ * std::max(0, task_.size - 2);
      task_.scratch.resize(std::max(task_.scratch.size(), need));
    }
    came_.assign(blocks, Schedule::kNone);
    for (int32_t t = 0; t < blocks + hops - 1; ++t) {
      for (int32_t hop = std::min(t, hops - 1); hop >= 0 && t - hop < blocks; --hop) {
        AddHop(t - hop, hop, all);
      }
    }
  }

 private:
  struct Slice {
    int64_t begin = 0;   // bytes from the start of the whole
    int64_t offset = 0;  // bytes from the start of the chunk
    int64_t bytes = 0;
  };
  Slice SliceOf(int32_t chunk_of, int32_t block) const {
    const int32_t owner = (chunk_of % task_.size + task_.size) % task_.size;
    const Chunk chunk = ChunkOf(task_.call.count, task_.size, owner);
    const int64_t bytes = chunk.size * task_.element();
    const int64_t offset = std::min(block * kBlock, bytes);
    return {chunk.begin * task_.element() + offset, offset, std::min(kBlock, bytes - offset)};
  }

  // What comes in hop `hop` is what the rank before holds after hop - 1: chunk rank - hop - 2.
  void AddHop(int32_t block, int32_t hop, bool all) {
    const Slice out = SliceOf(task_.rank - hop - 1, block);
    const Slice in = SliceOf(task_.rank - hop - 2, block);
    if (hop == 0) {
      task_.schedule.Send(next_, send_ + out.begin, out.bytes);
    } else {
      task_.schedule.Send(next_, Held(hop - 1, out, all), out.bytes, came_[block]);
    }
    std::byte* to = Held(hop, in, all);
    came_[block] = hop < task_.size - 1
                       ? task_.schedule.RecvAdd(previous_, send_ + in.begin, to, in.bytes)
                       : task_.schedule.Recv(previous_, to, in.bytes);
  }

  // Where what comes in `hop` is put.
  std::byte* Held(int32_t hop, Slice slice, bool all) const {
    if (slice.bytes == 0) return nullptr;
    if (all) return recv_ + slice.begin;
    if (hop == task_.size - 2) return recv_ + slice.offset;
    return task_.scratch.data() + hop * width_ + slice.offset;
  }

  const Task& task_;
  const int32_t next_, previous_;
  const std::byte* const send_;
  std::byte* const recv_;
  const int64_t width_;        // bytes of the widest chunk
  std::vector<int32_t> came_;  // by block: the step of its last receive
};

}  // namespace

// In place is safe: bytes of `recv` are only overwritten by what depends on the peer having read
// them.
void BuildRing(const Task& task) { Ring(task).Build(); }

}  // namespace weft::comm
