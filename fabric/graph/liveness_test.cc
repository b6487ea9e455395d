#include "fabric/graph/liveness.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

void ExpectSound(const std::vector<Lifetime>& blocks, const ArenaLayout& layout) {
  ASSERT_EQ(layout.offsets.size(), blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(layout.offsets[i] % kArenaAlign, 0);
    EXPECT_LE(layout.offsets[i] + blocks[i].bytes, layout.bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool together = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
      const bool apart = layout.offsets[i] + blocks[i].bytes <= layout.offsets[j] ||
                         layout.offsets[j] + blocks[j].bytes <= layout.offsets[i];
      EXPECT_TRUE(!together || apart) << i << " and " << j;
    }
  }
}

TEST(PlaceInArena, NoBlocks_IsEmpty) { EXPECT_EQ(PlaceInArena({}).bytes, 0); }

TEST(PlaceInArena, DisjointLifetimes_ShareBytes) {
  const std::vector<Lifetime> blocks = {{100, 0, 1}, {100, 2, 3}, {100, 4, 9}};
  const ArenaLayout layout = PlaceInArena(blocks);
  ExpectSound(blocks, layout);
  EXPECT_EQ(layout.bytes, 128);
}

TEST(PlaceInArena, TouchingLifetimes_StayApart) {
  const std::vector<Lifetime> blocks = {{64, 0, 1}, {64, 1, 2}};
  const ArenaLayout layout = PlaceInArena(blocks);
  ExpectSound(blocks, layout);
  EXPECT_EQ(layout.bytes, 128);
}

TEST(PlaceInArena, GapOfSeveral_TakesSmallestThatHolds) {
  // Blocks 1 and 3 leave gaps of 256 and 64 bytes; the last one fits into the smaller.
  const std::vector<Lifetime> blocks = {{64, 0, 9}, {256, 0, 1}, {64, 0, 9}, {64, 0, 1},
                                        {64, 0, 9}, {64, 3, 4},  {256, 3, 4}};
  const ArenaLayout layout = PlaceInArena(blocks);
  ExpectSound(blocks, layout);
  EXPECT_EQ(layout.bytes, 64 * 4 + 256);
}

TEST(PlaceInArena, ManyBlocks_AreSoundAndNearTheLowerBound) {
  for (const size_t count : {size_t{300}, size_t{7000}}) {
    std::vector<Lifetime> blocks;
    uint32_t state = 1;
    const auto next = [&state](uint32_t below) {
      state = state * 1664525u + 1013904223u;
      return static_cast<int32_t>((state >> 8) % below);
    };
    std::vector<int64_t> load(count + 40, 0);
    for (size_t i = 0; i < count; ++i) {
      const int32_t first = static_cast<int32_t>(i), last = first + next(20);
      blocks.push_back({64 * (1 + next(50)), first, last});
      for (int32_t t = first; t <= last; ++t) load[t] += blocks.back().bytes;
    }
    const ArenaLayout layout = PlaceInArena(blocks);
    if (count < 1000) ExpectSound(blocks, layout);
    EXPECT_LE(layout.bytes, *std::max_element(load.begin(), load.end()) * 3 / 2);
    EXPECT_EQ(layout.offsets, PlaceInArena(blocks).offsets);
  }
}

}  // namespace
}  // namespace weft
