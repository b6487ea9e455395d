// What lies where in the memory of a group. All fields are valid as zeros.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fabric/comm/channel.h"

namespace weft::comm {

inline constexpr int64_t kLine = 64;  // a cache line; messages begin on one

enum class Presence : uint32_t { kAbsent = 0, kEntering = 1, kHere = 2, kLeft = 3 };
enum class AbortState : uint32_t { kNone = 0, kWriting = 1, kSet = 2 };

struct alignas(kLine) GroupHeader {
  std::atomic<uint32_t> abort_state;
  AbortRecord abort;  // valid when kSet
};

struct alignas(kLine) Member {
  std::atomic<uint32_t> presence;
  std::atomic<uint32_t> process;
  unsigned char fingerprint[32];
  // 1 while the rank sleeps or is about to; whoever makes something possible for it sets it to 0
  // and wakes it.
  alignas(kLine) std::atomic<uint32_t> asleep;
};

// One stream: bytes [tail, head) are in it.
struct alignas(kLine) RingEnds {
  std::atomic<int64_t> head;                 // written by the sender
  alignas(kLine) std::atomic<int64_t> tail;  // written by the receiver
};

static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// A power of two; smaller in large groups, whose rings are many.
constexpr int64_t RingBytes(int32_t size) {
  return size <= 8 ? 256 << 10 : size <= 16 ? 128 << 10 : 64 << 10;
}
constexpr int64_t LayoutBytes(int32_t size) {
  const int64_t rings = static_cast<int64_t>(size) * size;
  return static_cast<int64_t>(sizeof(GroupHeader)) + size * static_cast<int64_t>(sizeof(Member)) +
         rings * (static_cast<int64_t>(sizeof(RingEnds)) + RingBytes(size));
}

class Layout {
 public:
  Layout(std::byte* base, int32_t size) : base_(base), size_(size) {}
  GroupHeader& header() const { return *reinterpret_cast<GroupHeader*>(base_); }
  Member& member(int32_t rank) const {
    return reinterpret_cast<Member*>(base_ + sizeof(GroupHeader))[rank];
  }
  RingEnds& ends(int32_t from, int32_t to) const {
    return reinterpret_cast<RingEnds*>(&member(size_))[from * size_ + to];
  }
  std::byte* bytes(int32_t from, int32_t to) const {
    std::byte* first = reinterpret_cast<std::byte*>(&ends(size_, 0));
    return first + (static_cast<int64_t>(from) * size_ + to) * RingBytes(size_);
  }

 private:
  std::byte* base_;
  int32_t size_;
};

}  // namespace weft::comm
