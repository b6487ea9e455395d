#include "fabric/graph/liveness.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace weft {
namespace {

// Placing by size looks at all pairs of blocks.
constexpr size_t kMostForBySize = 6000;

int64_t Aligned(int64_t bytes) {
  return std::max(kArenaAlign, (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign);
}

// Biggest first, each into the smallest gap between placed blocks that are alive at the same time.
ArenaLayout PlaceBySize(const std::vector<Lifetime>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  ArenaLayout layout;
  layout.offsets.assign(blocks.size(), 0);
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const int64_t need = Aligned(blocks[i].bytes);
    int64_t best = -1, best_gap = std::numeric_limits<int64_t>::max(), end = 0;
    for (const size_t j : placed) {
      if (blocks[j].last < blocks[i].first || blocks[i].last < blocks[j].first) continue;
      const int64_t gap = layout.offsets[j] - end;
      if (gap >= need && gap < best_gap) best = end, best_gap = gap;
      end = std::max(end, layout.offsets[j] + Aligned(blocks[j].bytes));
    }
    layout.offsets[i] = best >= 0 ? best : end;
    layout.bytes = std::max(layout.bytes, layout.offsets[i] + need);
    const auto at = std::upper_bound(placed.begin(), placed.end(), i, [&](size_t a, size_t b) {
      return layout.offsets[a] < layout.offsets[b];
    });
    placed.insert(at, i);
  }
  return layout;
}

// The free bytes below the arena's end, as gaps by offset that do not touch.
class FreeList {
 public:
  // The smallest gap that holds `bytes`; the arena grows when there is none.
  int64_t Take(int64_t bytes) {
    auto best = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->second >= bytes && (best == gaps_.end() || gap->second < best->second)) best = gap;
    }
    if (best == gaps_.end()) {
      int64_t offset = end_;
      if (!gaps_.empty() && gaps_.rbegin()->first + gaps_.rbegin()->second == end_) {
        offset = gaps_.rbegin()->first;
        gaps_.erase(offset);
      }
      end_ = offset + bytes;
      return offset;
    }
    const auto [offset, size] = *best;
    gaps_.erase(best);
    if (size > bytes) gaps_[offset + bytes] = size - bytes;
    return offset;
  }

  void Give(int64_t offset, int64_t bytes) {
    auto gap = gaps_.emplace(offset, bytes).first;
    const auto next = std::next(gap);
    if (next != gaps_.end() && offset + gap->second == next->first) {
      gap->second += next->second;
      gaps_.erase(next);
    }
    if (gap == gaps_.begin()) return;
    const auto before = std::prev(gap);
    if (before->first + before->second == offset) {
      before->second += gap->second;
      gaps_.erase(gap);
    }
  }

  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> gaps_;  // offset -> bytes
  int64_t end_ = 0;
};

// In the order of time, each into the smallest free gap.
ArenaLayout PlaceByTime(const std::vector<Lifetime>& blocks) {
  std::vector<size_t> starts(blocks.size());
  std::iota(starts.begin(), starts.end(), 0);
  std::vector<size_t> ends = starts;
  std::stable_sort(starts.begin(), starts.end(),
                   [&](size_t a, size_t b) { return blocks[a].first < blocks[b].first; });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](size_t a, size_t b) { return blocks[a].last < blocks[b].last; });
  ArenaLayout layout;
  layout.offsets.assign(blocks.size(), 0);
  FreeList free;
  size_t ended = 0;
  for (const size_t i : starts) {
    while (ended < ends.size() && blocks[ends[ended]].last < blocks[i].first) {
      free.Give(layout.offsets[ends[ended]], Aligned(blocks[ends[ended]].bytes));
      ++ended;
    }
    layout.offsets[i] = free.Take(Aligned(blocks[i].bytes));
  }
  layout.bytes = free.end();
  return layout;
}

}  // namespace

ArenaLayout PlaceInArena(const std::vector<Lifetime>& blocks) {
  ArenaLayout by_time = PlaceByTime(blocks);
  if (blocks.size() > kMostForBySize) return by_time;
  ArenaLayout by_size = PlaceBySize(blocks);
  return by_size.bytes <= by_time.bytes ? by_size : by_time;
}

}  // namespace weft
