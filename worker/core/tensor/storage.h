// Storage: the bytes that a tensor and its views share, and how often they have been written in
// place. Owns a reference to its buffer. The counters are thread-safe; the bytes are not guarded.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "fabric/base/buffer.h"

namespace weft {

class Storage {
 public:
  explicit Storage(Buffer buffer) : buffer_(std::move(buffer)) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  const Buffer& buffer() const { return buffer_; }

  // Counts writes in place. The tape compares it with what it saw when it saved a value.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void BumpVersion() { version_.fetch_add(1, std::memory_order_relaxed); }

  // The version that the last write recorded on a tape left. Handles made before it show new bytes
  // but know nothing of how these came to be, so gradients through them would be wrong.
  uint64_t recorded_version() const { return recorded_version_.load(std::memory_order_relaxed); }
  void MarkRecordedWrite() { recorded_version_.store(version(), std::memory_order_relaxed); }

 private:
  Buffer buffer_;
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> recorded_version_{0};
};

}  // namespace weft
