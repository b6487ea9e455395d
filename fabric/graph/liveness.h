// Where temporaries lie in one arena: blocks whose lifetimes do not meet share bytes. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

inline constexpr int64_t kArenaAlign = 64;  // bytes

// Needed from the call `first` to the call `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // by block, multiples of kArenaAlign
  int64_t bytes = 0;             // of the arena
};

// Best fit: the smaller result of placing big blocks first and of placing blocks in the order of
// time (only the latter for very many blocks). The same input gives the same layout.
ArenaLayout PlaceInArena(const std::vector<Lifetime>& blocks);

}  // namespace weft
