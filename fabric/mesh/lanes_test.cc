#include "fabric/mesh/lanes.h"

#include <string>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(CheckBatch, Refusals_NameWhatWouldDo) {
  const struct {
    int64_t batch;
    int32_t lanes;
    const char* says;
  } rows[] = {
      {10, 4, "10 does not divide into 4 lanes; 8 or 12 would, and so would 2 or 5 lanes"},
      {3, 4, "3 does not divide into 4 lanes; 4 would, and so would 3 lanes"},
      {7, 2, "7 does not divide into 2 lanes; 6 or 8 would, and so would 1 or 7 lanes"},
      {0, 1, "is 0, wants at least 1"},
      {8, 0, "cannot be cut into 0 lanes"},
      {8, 70000, "lanes go from 1 to 65536"},
  };
  for (const auto& row : rows) {
    const Status status = CheckBatch(row.batch, row.lanes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << status;
  }
  EXPECT_TRUE(CheckBatch(12, 12).ok());
  EXPECT_TRUE(CheckBatch(60, 12).ok());
}

TEST(ShareLanes, AllCounts_CoverTheLanesOnce) {
  for (int32_t ranks = 1; ranks <= 12; ++ranks) {
    const StatusOr<std::vector<LaneRange>> shares = ShareLanes(12, ranks);
    ASSERT_TRUE(shares.ok());
    int32_t at = 0;
    for (const LaneRange& share : *shares) {
      EXPECT_EQ(share.begin, at);
      EXPECT_GT(share.size(), 0);
      at = share.end;
    }
    EXPECT_EQ(at, 12);
  }
}

TEST(ShareLanes, MoreRanksThanLanes_IsRefused) {
  const Status status = ShareLanes(2, 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("at most 2 ranks or at least 3 lanes"),
            std::string::npos);
}

TEST(PeakPartials, Ranges_GrowWithTheLogOfTheirSize) {
  EXPECT_EQ(PeakPartials(1, {0, 1}), 1);
  EXPECT_EQ(PeakPartials(2, {0, 2}), 2);
  EXPECT_EQ(PeakPartials(8, {0, 8}), 4);
  EXPECT_EQ(PeakPartials(12, {0, 12}), 4);
  EXPECT_EQ(PeakPartials(64, {0, 64}), 7);
}

TEST(ReduceWireBytes, AlignedShares_CostWhatARingCosts) {
  for (const int32_t ranks : {1, 3, 6, 12}) {
    const auto shares = *ShareLanes(12, ranks);
    const int64_t ring = ReduceWireBytes(12, shares, ReduceMode::kRing, 12000);
    EXPECT_EQ(ring, 2 * 12000 / ranks * (ranks - 1));
    EXPECT_EQ(ReduceWireBytes(12, shares, ReduceMode::kOrdered, 12000), ring);
  }
  // Two ranks of 12 lanes hold two partials each: [0, 4) and [4, 6); [6, 8) and [8, 12).
  const auto halves = *ShareLanes(12, 2);
  EXPECT_EQ(ReduceWireBytes(12, halves, ReduceMode::kOrdered, 12000), 3 * 6000);
}

}  // namespace
}  // namespace weft
