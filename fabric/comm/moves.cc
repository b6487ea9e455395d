#include <algorithm>
#include <cstring>

#include "fabric/comm/algorithms.h"

namespace weft::comm {
namespace {

// Up to here a broadcast's root sends to everyone itself, which is one hop; above, ranks pass it
// on, so that no link carries it twice.
constexpr int64_t kDirectBroadcast = 32 << 10;

const std::byte* At(const void* base, int64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}
std::byte* At(void* base, int64_t offset) { return static_cast<std::byte*>(base) + offset; }

void Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

void AllGather(const Task& task) {
  const CollectiveCall& call = task.call;
  const Chunk own = ChunkOf(call.count, task.size, task.rank);
  if (own.size > 0) {
    Copy(At(call.recv, own.begin * task.element()), call.send, own.size * task.element());
  }
  for (int32_t i = 1; i < task.size; ++i) {
    const int32_t peer = (task.rank + i) % task.size;
    const Chunk chunk = ChunkOf(call.count, task.size, peer);
    task.schedule.Send(peer, call.send, own.size * task.element());
    if (chunk.size > 0) {
      task.schedule.Recv(peer, At(call.recv, chunk.begin * task.element()),
                         chunk.size * task.element());
    }
  }
}

void Broadcast(const Task& task) {
  const CollectiveCall& call = task.call;
  const int64_t bytes = call.count * task.element();
  // Place in the line that starts at the root.
  const int32_t place = (task.rank - call.peer + task.size) % task.size;
  if (bytes <= kDirectBroadcast) {
    if (place != 0) {
      task.schedule.Recv(call.peer, call.recv, bytes);
      return;
    }
    for (int32_t i = 1; i < task.size; ++i) {
      task.schedule.Send((task.rank + i) % task.size, call.recv, bytes);
    }
    return;
  }
  int32_t came = Schedule::kNone;
  if (place != 0) {
    came = task.schedule.Recv((task.rank - 1 + task.size) % task.size, call.recv, bytes);
  }
  if (place + 1 < task.size) {
    task.schedule.Send((task.rank + 1) % task.size, call.recv, bytes, came);
  }
}

void AllToAll(const Task& task) {
  const CollectiveCall& call = task.call;
  const int64_t bytes = call.count / task.size * task.element();
  if (bytes == 0) return;
  Copy(At(call.recv, task.rank * bytes), At(call.send, task.rank * bytes), bytes);
  for (int32_t i = 1; i < task.size; ++i) {
    const int32_t peer = (task.rank + i) % task.size;
    task.schedule.Send(peer, At(call.send, peer * bytes), bytes);
    task.schedule.Recv(peer, At(call.recv, peer * bytes), bytes);
  }
}

// Everyone hears from everyone.
void Barrier(const Task& task) {
  constexpr int64_t kToken = 8;
  static constexpr std::byte kNothing[kToken] = {};
  task.scratch.resize(std::max<size_t>(task.scratch.size(), kToken));
  for (int32_t i = 1; i < task.size; ++i) {
    const int32_t peer = (task.rank + i) % task.size;
    task.schedule.Send(peer, kNothing, kToken);
    task.schedule.Recv(peer, task.scratch.data(), kToken);
  }
}

}  // namespace

void BuildMove(const Task& task) {
  const CollectiveCall& call = task.call;
  switch (call.kind) {
    case Kind::kAllGather:
      return AllGather(task);
    case Kind::kBroadcast:
      return Broadcast(task);
    case Kind::kAllToAll:
      return AllToAll(task);
    case Kind::kSend:
      task.schedule.Send(call.peer, call.send, call.count * task.element());
      return;
    case Kind::kRecv:
      task.schedule.Recv(call.peer, call.recv, call.count * task.element());
      return;
    case Kind::kBarrier:
      return Barrier(task);
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      return;  // BuildRing, BuildOrdered
  }
}

}  // namespace weft::comm
