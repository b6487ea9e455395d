#include <algorithm>
#include <cstring>

#include "fabric/comm/algorithms.h"

namespace weft::comm {
namespace {

struct Slice {
  int64_t begin = 0;  // bytes
  int64_t bytes = 0;
};

Slice SliceOf(const Task& task, int32_t rank) {
  const int32_t owner = (rank % task.size + task.size) % task.size;
  const Chunk chunk = ChunkOf(task.call.count, task.size, owner);
  return {chunk.begin * task.element(), chunk.size * task.element()};
}

}  // namespace

// Step s of the first round: chunk rank-s-1 goes to the next rank, chunk rank-s-2 comes from the
// one before and this rank's share is added; after size-1 steps rank r holds the sum of chunk r.
// The second round passes the sums on. A chunk is sent in step s+1 as it arrives in step s.
//
// In place is safe: bytes of `recv` are only overwritten by what depends on the peer having read
// them.
void BuildRing(const Task& task) {
  const CollectiveCall& call = task.call;
  const bool all = call.kind == Kind::kAllReduce;
  const int32_t rank = task.rank, size = task.size;
  const int32_t next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const std::byte* send = static_cast<const std::byte*>(call.send);
  std::byte* recv = static_cast<std::byte*>(call.recv);

  // Sums in passing have no place in a reduce_scatter's recv.
  const int64_t width = SliceOf(task, 0).bytes;
  if (!all) {
    task.scratch.resize(std::max<size_t>(task.scratch.size(), width * std::max(0, size - 2)));
  }
  const auto sum_at = [&](int32_t s, Slice slice) {
    if (all) return recv + slice.begin;
    return s == size - 2 ? recv : task.scratch.data() + s * width;
  };

  int32_t came = Schedule::kNone;
  Slice out = SliceOf(task, rank - 1);
  task.schedule.Send(next, send + out.begin, out.bytes);
  for (int32_t s = 0; s < size - 1; ++s) {
    const Slice in = SliceOf(task, rank - s - 2);
    std::byte* sum = in.bytes > 0 ? sum_at(s, in) : nullptr;
    came = task.schedule.RecvAdd(previous, send + in.begin, sum, in.bytes);
    if (s < size - 2 || all) task.schedule.Send(next, sum, in.bytes, came);
  }
  if (!all) return;
  for (int32_t s = 0; s < size - 1; ++s) {
    const Slice in = SliceOf(task, rank - s - 1);
    came = task.schedule.Recv(previous, recv + in.begin, in.bytes);
    if (s < size - 2) task.schedule.Send(next, recv + in.begin, in.bytes, came);
  }
}

}  // namespace weft::comm
