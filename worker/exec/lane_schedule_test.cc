#include "worker/exec/lane_schedule.h"

#include <string>

#include "gtest/gtest.h"

namespace weft {
namespace {

// Runs a schedule on text instead of numbers.
std::vector<std::string> Held(const LaneSchedule& schedule) {
  std::vector<std::string> buffers(static_cast<size_t>(schedule.buffers));
  for (const LaneStep& step : schedule.steps) {
    buffers[static_cast<size_t>(step.buffer)] = std::to_string(step.lane);
    for (const BufferAdd& add : step.adds) {
      std::string& into = buffers[static_cast<size_t>(add.into)];
      into = "(" + into + "+" + buffers[static_cast<size_t>(add.from)] + ")";
    }
  }
  std::vector<std::string> held;
  for (const HeldNode& node : schedule.nodes)
    held.push_back(buffers[static_cast<size_t>(node.buffer)]);
  return held;
}

TEST(LaneSchedule, OneRank_SpellsTheTree) {
  EXPECT_EQ(Held(MakeLaneSchedule(1, {0, 1})), std::vector<std::string>{"0"});
  EXPECT_EQ(Held(MakeLaneSchedule(5, {0, 5})), std::vector<std::string>{"(((0+1)+(2+3))+4)"});
  EXPECT_EQ(Held(MakeLaneSchedule(7, {0, 7})),
            std::vector<std::string>{"(((0+1)+(2+3))+((4+5)+6))"});
}

TEST(LaneSchedule, OneRank_NeedsLogarithmicallyManyBuffers) {
  EXPECT_EQ(MakeLaneSchedule(1, {0, 1}).buffers, 1);
  EXPECT_EQ(MakeLaneSchedule(8, {0, 8}).buffers, 4);
  EXPECT_EQ(MakeLaneSchedule(12, {0, 12}).buffers, 4);
  EXPECT_EQ(MakeLaneSchedule(64, {0, 64}).buffers, 7);
}

TEST(LaneSchedule, UnalignedShare_HoldsItsMaximalNodes) {
  const LaneSchedule schedule = MakeLaneSchedule(12, {3, 6});
  EXPECT_EQ(Held(schedule), (std::vector<std::string>{"3", "(4+5)"}));
  ASSERT_EQ(schedule.nodes.size(), 2u);
  EXPECT_EQ(schedule.nodes[0].node, (LaneRange{3, 4}));
  EXPECT_EQ(schedule.nodes[1].node, (LaneRange{4, 6}));
}

}  // namespace
}  // namespace weft
