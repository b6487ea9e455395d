// TraceRing: the last few thousand op runs, for profiles. Off at first; while off, an op pays one
// relaxed load. Writers never wait: a slot that two of them meet in drops one record and counts it.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft {

struct TraceRecord {
  const char* op = nullptr;  // the op's name; lives as long as the op set
  int64_t start_ns = 0;      // on the monotonic clock
  int64_t duration_ns = 0;
  int64_t bytes = 0;  // of operands and results
};

class TraceRing {
 public:
  // `capacity` is rounded up to a power of two.
  explicit TraceRing(size_t capacity = 4096);

  void Enable(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  void Add(const TraceRecord& record);
  // What the ring holds, oldest first. Records that are being written meanwhile are left out.
  std::vector<TraceRecord> Dump() const;
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  size_t capacity() const { return mask_ + 1; }

 private:
  // `turn` is 2 * ticket + 1 while the record of that ticket is being written, 2 * ticket + 2
  // after.
  struct Slot {
    std::atomic<uint64_t> turn{0};
    std::atomic<const char*> op{nullptr};
    std::atomic<int64_t> start_ns{0};
    std::atomic<int64_t> duration_ns{0};
    std::atomic<int64_t> bytes{0};
  };

  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<bool> enabled_{false};
  std::atomic<uint64_t> next_{0};
  std::atomic<int64_t> dropped_{0};
};

}  // namespace weft
