// What a caching allocator says about itself. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct AllocatorStats {
  int64_t live_bytes = 0;       // in blocks that somebody holds, rounded up as handed out
  int64_t requested_bytes = 0;  // the same blocks, as asked for
  int64_t live_blocks = 0;
  int64_t deferred_bytes = 0;  // dropped by their holder, still in use by queued work
  int64_t deferred_blocks = 0;
  int64_t reserved_bytes = 0;  // obtained from the device
  int64_t segments = 0;
  int64_t peak_live_bytes = 0;  // deferred blocks count as live here
  int64_t peak_reserved_bytes = 0;
  int64_t allocations = 0;  // since the start, as are all below
  int64_t cache_hits = 0;   // served without asking the device
  int64_t splits = 0;
  int64_t coalesces = 0;
  int64_t trims = 0;     // on request or to retry
  int64_t failures = 0;  // ResourceExhausted answers
};

enum class BlockState { kFree, kLive, kDeferred };

struct BlockInfo {
  int64_t offset = 0;  // into its segment
  int64_t bytes = 0;
  int64_t requested_bytes = 0;  // 0 when free
  BlockState state = BlockState::kFree;
  std::string tag;  // who holds it; empty when free
};

struct SegmentInfo {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::vector<BlockInfo> blocks;  // by offset, without gaps
};

// Who holds how much, summed by tag.
struct HolderInfo {
  std::string tag;
  int64_t bytes = 0;
  int64_t blocks = 0;
};

// "512 B", "3.0 MiB".
std::string FormatBytes(int64_t bytes);

}  // namespace weft
