#include "fabric/base/lane_tree.h"

#include <string>

#include "gtest/gtest.h"

namespace weft {
namespace {

// The tree by its definition, as text: what every schedule must spell.
std::string Spell(int32_t lanes, int32_t begin, int32_t width) {
  if (width == 1) return std::to_string(begin);
  const int32_t half = width / 2;
  if (begin + half >= lanes) return Spell(lanes, begin, half);
  return "(" + Spell(lanes, begin, half) + "+" + Spell(lanes, begin + half, half) + ")";
}

std::string SpellTree(int32_t lanes) {
  int32_t width = 1;
  while (width < lanes) width *= 2;
  return Spell(lanes, 0, width);
}

std::string SpellSum(const std::vector<TreeAdd>& adds, std::vector<std::string> terms) {
  for (const TreeAdd& add : adds)
    terms[add.left] = "(" + terms[add.left] + "+" + terms[add.right] + ")";
  return terms[0];
}

TEST(LaneTree, AnySplit_SumsInOneOrder) {
  for (int32_t lanes = 1; lanes <= 33; ++lanes) {
    for (int32_t ranks = 1; ranks <= lanes; ++ranks) {
      std::vector<LaneRange> all;
      std::vector<std::string> terms;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        for (const LaneRange& node : MaximalNodes(lanes, OwnedLanes(lanes, ranks, rank))) {
          std::vector<LaneRange> leaves;
          std::vector<std::string> names;
          for (int32_t lane = node.begin; lane < node.end; ++lane) {
            leaves.push_back({lane, lane + 1});
            names.push_back(std::to_string(lane));
          }
          terms.push_back(SpellSum(TreeSchedule(lanes, leaves), names));
          all.push_back(node);
        }
      }
      EXPECT_EQ(SpellSum(TreeSchedule(lanes, all), terms), SpellTree(lanes))
          << lanes << " lanes on " << ranks << " ranks";
    }
  }
}

TEST(LaneTree, OwnedLanes_CoverAllOnce) {
  for (int32_t lanes = 1; lanes <= 16; ++lanes) {
    for (int32_t ranks = 1; ranks <= lanes; ++ranks) {
      int32_t at = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const LaneRange share = OwnedLanes(lanes, ranks, rank);
        EXPECT_EQ(share.begin, at);
        EXPECT_GT(share.size(), 0);
        at = share.end;
      }
      EXPECT_EQ(at, lanes);
    }
  }
}

TEST(LaneTree, AlignedShares_AreOnePartial) {
  for (int32_t ranks : {1, 2, 4, 8}) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(MaximalNodes(8, OwnedLanes(8, ranks, rank)).size(), 1u);
    }
  }
  for (int32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(MaximalNodes(12, OwnedLanes(12, 3, rank)).size(), 1u);
}

}  // namespace
}  // namespace weft
