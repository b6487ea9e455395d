#include "worker/core/dispatch/trace.h"

#include <bit>

namespace weft {

TraceRing::TraceRing(size_t capacity)
    : mask_(std::bit_ceil(capacity < 1 ? size_t{1} : capacity) - 1), slots_(new Slot[mask_ + 1]) {}

void TraceRing::Add(const TraceRecord& record) {
  const uint64_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[ticket & mask_];
  uint64_t turn = slot.turn.load(std::memory_order_relaxed);
  const bool taken = turn % 2 == 1 || turn > 2 * ticket;  // a writer is in there, or one lap ahead
  if (taken ||
      !slot.turn.compare_exchange_strong(turn, 2 * ticket + 1, std::memory_order_acq_rel)) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  // Releases keep a reader that sees a field of this record from missing the odd turn before it.
  slot.op.store(record.op, std::memory_order_release);
  slot.start_ns.store(record.start_ns, std::memory_order_release);
  slot.duration_ns.store(record.duration_ns, std::memory_order_release);
  slot.bytes.store(record.bytes, std::memory_order_release);
  slot.turn.store(2 * ticket + 2, std::memory_order_release);
}

std::vector<TraceRecord> TraceRing::Dump() const {
  std::vector<TraceRecord> records;
  const uint64_t end = next_.load(std::memory_order_acquire);
  const uint64_t begin = end > mask_ + 1 ? end - (mask_ + 1) : 0;
  for (uint64_t ticket = begin; ticket < end; ++ticket) {
    const Slot& slot = slots_[ticket & mask_];
    if (slot.turn.load(std::memory_order_acquire) != 2 * ticket + 2) continue;
    TraceRecord record;
    record.op = slot.op.load(std::memory_order_acquire);
    record.start_ns = slot.start_ns.load(std::memory_order_acquire);
    record.duration_ns = slot.duration_ns.load(std::memory_order_acquire);
    record.bytes = slot.bytes.load(std::memory_order_acquire);
    if (slot.turn.load(std::memory_order_relaxed) == 2 * ticket + 2) records.push_back(record);
  }
  return records;
}

}  // namespace weft
