#include "server/lease/gang_policy.h"

#include <algorithm>

namespace weft::lease {

std::vector<std::string> PlaceGang(int32_t min_ranks, int32_t max_ranks, Spread spread,
                                   std::vector<FreeSlots> slots) {
  // Most free first; equal ones by name, so that the same view gives the same placement.
  std::sort(slots.begin(), slots.end(), [](const FreeSlots& a, const FreeSlots& b) {
    return a.free != b.free ? a.free > b.free : a.worker < b.worker;
  });
  int32_t available = 0;
  for (const FreeSlots& s : slots) {
    const int32_t free = std::max(s.free, 0);
    available = spread == Spread::kOneWorker ? std::max(available, free) : available + free;
  }
  const int32_t ranks = std::min(max_ranks, available);
  if (ranks < std::max(min_ranks, 1)) return {};

  // The last that can hold all is the fullest one that can.
  const auto whole = std::find_if(slots.rbegin(), slots.rend(),
                                  [ranks](const FreeSlots& s) { return s.free >= ranks; });
  if (whole != slots.rend()) return std::vector<std::string>(ranks, whole->worker);

  std::vector<std::string> by_rank;
  for (const FreeSlots& s : slots) {
    for (int32_t i = 0; i < s.free && static_cast<int32_t>(by_rank.size()) < ranks; ++i) {
      by_rank.push_back(s.worker);
    }
  }
  return by_rank;
}

}  // namespace weft::lease
