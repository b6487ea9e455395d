#include "worker/core/device/cpu_device.h"

#include <atomic>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(ThreadPool, ManyCalls_EachTileRunsOnce) {
  for (int threads : {1, 2, 5}) {
    const std::unique_ptr<TileRunner> pool = MakeThreadPool(threads);
    EXPECT_EQ(pool->threads(), threads);
    for (int64_t tiles : {0, 1, 2, 3, 7, 64, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<std::atomic<int>> runs(tiles);
        pool->For(tiles, [&](int64_t tile, int thread) {
          ASSERT_GE(thread, 0);
          ASSERT_LT(thread, threads);
          runs[tile].fetch_add(1);
        });
        for (int64_t i = 0; i < tiles; ++i) ASSERT_EQ(runs[i].load(), 1) << i;
      }
    }
  }
}

TEST(ThreadPool, PlainWritesOfTiles_AreSeenByTheCaller) {
  const std::unique_ptr<TileRunner> pool = MakeThreadPool(2);
  std::vector<int64_t> cells(256);
  for (int64_t round = 1; round <= 200; ++round) {
    pool->For(256, [&](int64_t tile, int) { cells[tile] += tile; });
    for (int64_t i = 0; i < 256; ++i) ASSERT_EQ(cells[i], i * round);
  }
}

TEST(InstructionSets, OfThisCpu_EndWithTheBaseline) {
  const std::vector<std::string> names = SupportedInstructionSets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "sse2");
  EXPECT_FALSE(CpuModel().empty());
}

TEST(UseInstructionSet, BeforeAnyKernel_TakesOnlyWhatTheCpuHas) {
  EXPECT_EQ(UseInstructionSet("mmx").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CurrentInstructionSet(), SupportedInstructionSets()[0]);
  EXPECT_TRUE(UseInstructionSet("sse2").ok());
  EXPECT_EQ(CurrentInstructionSet(), "sse2");
}

// Calls of few and of many tiles in turn: a thread that comes late to a short call must not take
// part in the long one that follows before that one has begun. More threads than cores, so that
// threads do come late.
TEST(ThreadPool, LateThreads_NeverTakeATileOfTheNextCall) {
  const std::unique_ptr<TileRunner> pool = MakeThreadPool(6);
  constexpr int kLongCall = 64;
  std::vector<std::atomic<int>> runs(kLongCall);
  const absl::Time end = absl::Now() + absl::Seconds(3);
  for (int64_t call = 0; call < 400000 && (call % 256 != 0 || absl::Now() < end); ++call) {
    const int64_t tiles = call % 2 == 0 ? 2 : kLongCall;
    std::atomic<bool> open{true};
    for (auto& r : runs) r.store(0, std::memory_order_relaxed);
    std::atomic<int64_t> outside{0};
    pool->For(tiles, [&](int64_t tile, int) {
      if (!open.load() || tile >= tiles) outside.fetch_add(1);
      runs[static_cast<size_t>(tile)].fetch_add(1, std::memory_order_relaxed);
    });
    open.store(false);
    ASSERT_EQ(outside.load(), 0) << "call " << call;
    for (int64_t i = 0; i < kLongCall; ++i) {
      ASSERT_EQ(runs[static_cast<size_t>(i)].load(), i < tiles ? 1 : 0)
          << "call " << call << " tile " << i;
    }
  }
}

}  // namespace
}  // namespace weft
