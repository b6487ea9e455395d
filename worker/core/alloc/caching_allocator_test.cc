#include "worker/core/alloc/caching_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsStatus;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

// Counts what an allocator asks of its device; refuses above a limit.
class CountingSource final : public MemorySource {
 public:
  explicit CountingSource(size_t limit) : cpu_(MakeCpuSource()), limit_(limit) {}

  StatusOr<void*> Obtain(size_t bytes) override {
    ++obtained;
    if (held + bytes > limit_) return ResourceExhausted("the device is full");
    held += bytes;
    return cpu_->Obtain(bytes);
  }
  void Return(void* data, size_t bytes) override {
    held -= bytes;
    cpu_->Return(data, bytes);
  }
  DeviceId device() const override { return cpu_->device(); }
  size_t alignment() const override { return cpu_->alignment(); }

  std::atomic<size_t> held{0};
  std::atomic<int> obtained{0};

 private:
  const std::unique_ptr<MemorySource> cpu_;
  const size_t limit_;
};

class CachingAllocatorTest : public ::testing::Test {
 protected:
  void Make(size_t device_limit = 1024 * kMiB, int64_t cap = int64_t{1} << 40) {
    auto source = std::make_unique<CountingSource>(device_limit);
    source_ = source.get();
    allocator_ = CachingAllocator::Create(std::move(source), {cap});
  }
  void SetUp() override { Make(); }

  Buffer Get(size_t bytes, absl::string_view tag = "test") {
    StatusOr<Buffer> buffer = allocator_->Allocate(bytes, tag);
    EXPECT_OK(buffer);
    return buffer.ok() ? *buffer : Buffer();
  }
  // Blocks tile their segments, free neighbours are merged, sums match the statistics.
  void CheckInvariants() {
    int64_t live = 0, deferred = 0, reserved = 0;
    for (const SegmentInfo& segment : allocator_->Snapshot()) {
      int64_t at = 0;
      BlockState before = BlockState::kLive;
      for (const BlockInfo& block : segment.blocks) {
        EXPECT_EQ(block.offset, at);
        EXPECT_FALSE(block.state == BlockState::kFree && before == BlockState::kFree);
        at += block.bytes;
        before = block.state;
        live += block.state == BlockState::kLive ? block.bytes : 0;
        deferred += block.state == BlockState::kDeferred ? block.bytes : 0;
      }
      EXPECT_EQ(at, segment.bytes);
      reserved += segment.bytes;
    }
    const AllocatorStats stats = allocator_->stats();
    EXPECT_EQ(stats.live_bytes, live);
    EXPECT_EQ(stats.deferred_bytes, deferred);
    EXPECT_EQ(stats.reserved_bytes, reserved);
    EXPECT_EQ(static_cast<size_t>(stats.reserved_bytes), source_->held);
  }

  CountingSource* source_ = nullptr;
  std::shared_ptr<CachingAllocator> allocator_;
};

TEST(ClassSize, Requests_RoundUpWithLittleWaste) {
  const struct {
    size_t bytes, size;
  } kRows[] = {{0, 256},
               {1, 256},
               {256, 256},
               {257, 512},
               {kMiB, kMiB},
               {kMiB + 1, kMiB + kMiB / 8},
               {2 * kMiB, 2 * kMiB},
               {2 * kMiB + 1, 2 * kMiB + kMiB / 4},
               {100 * kMiB, 104 * kMiB}};
  for (const auto& row : kRows)
    EXPECT_EQ(CachingAllocator::ClassSize(row.bytes), row.size) << row.bytes;
  for (size_t bytes = 1; bytes < size_t{1} << 40; bytes = bytes * 5 / 3 + 1) {
    const size_t size = CachingAllocator::ClassSize(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, std::max(bytes + 255, bytes + bytes / 8)) << bytes;
    EXPECT_EQ(CachingAllocator::ClassSize(size), size);
  }
}

TEST_F(CachingAllocatorTest, Blocks_OfOneSegment_AlignedAndApart) {
  std::vector<Buffer> buffers;
  for (size_t bytes : {1, 300, 64, 5000}) buffers.push_back(Get(bytes));
  EXPECT_EQ(source_->obtained, 1);
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers[i].data()) % 64, 0u);
    std::memset(buffers[i].data(), static_cast<int>(i + 1), buffers[i].bytes());
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(buffers[i].data());
    EXPECT_EQ(std::count(bytes, bytes + buffers[i].bytes(), i + 1),
              static_cast<ptrdiff_t>(buffers[i].bytes()));
  }
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, FreedBlock_SameSizeAgain_Reused) {
  const void* first = Get(10 * kKiB).data();
  EXPECT_EQ(Get(10 * kKiB).data(), first);
  EXPECT_EQ(source_->obtained, 1);
  EXPECT_EQ(allocator_->stats().cache_hits, 1);
}

TEST_F(CachingAllocatorTest, FreedNeighbours_AnyOrder_CoalesceIntoWholeSegment) {
  const int kOrders[][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}};
  for (const auto& order : kOrders) {
    Make();
    std::vector<Buffer> buffers = {Get(512 * kKiB), Get(512 * kKiB), Get(512 * kKiB)};
    for (int i : order) {
      buffers[i] = Buffer();
      CheckInvariants();
    }
    const std::vector<SegmentInfo> segments = allocator_->Snapshot();
    ASSERT_EQ(segments.size(), 1u);
    EXPECT_EQ(segments[0].blocks.size(), 1u);
    EXPECT_EQ(allocator_->stats().coalesces, allocator_->stats().splits);
    Get(kMiB);  // fits only in the merged block
    EXPECT_EQ(source_->obtained, 1);
  }
}

TEST_F(CachingAllocatorTest, FreeBlocks_SeveralFit_SmallestTaken) {
  Buffer large = Get(8 * kKiB), wall1 = Get(256), small = Get(4 * kKiB), wall2 = Get(256);
  const void* small_data = small.data();
  large = small = Buffer();
  EXPECT_EQ(Get(3 * kKiB).data(), small_data);
}

TEST_F(CachingAllocatorTest, LargeBlock_LittleLeft_NotSplit) {
  Buffer a = Get(3 * kMiB);  // a segment of 4 MiB
  EXPECT_EQ(allocator_->Snapshot()[0].blocks.size(), 2u);
  a = Get(7 * kMiB / 2);  // of 4 MiB too, and half a MiB over
  for (const SegmentInfo& s : allocator_->Snapshot()) {
    if (s.blocks[0].state == BlockState::kLive) {
      EXPECT_EQ(s.blocks.size(), 1u);
    }
  }
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, DeferredBlock_EventPending_NotReusedUntilDone) {
  bool done = false;
  Buffer buffer = Get(kKiB, "queued");
  const void* data = buffer.data();
  allocator_->DeferFree(buffer, [&done] { return done; });
  buffer = Buffer();
  EXPECT_EQ(allocator_->stats().live_blocks, 0);
  EXPECT_EQ(allocator_->stats().deferred_blocks, 1);
  EXPECT_NE(Get(kKiB).data(), data);
  CheckInvariants();
  done = true;
  EXPECT_EQ(Get(kKiB).data(), data);
  EXPECT_EQ(allocator_->stats().deferred_bytes, 0);
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, DeferredBlock_TwoEvents_WaitsForBoth) {
  bool first = false, second = false;
  Buffer buffer = Get(kKiB);
  allocator_->DeferFree(buffer, [&first] { return first; });
  allocator_->DeferFree(buffer, [&second] { return second; });
  buffer = Buffer();
  second = true;
  allocator_->Poll();
  EXPECT_EQ(allocator_->stats().deferred_blocks, 1);
  first = true;
  allocator_->Poll();
  EXPECT_EQ(allocator_->stats().deferred_blocks, 0);
}

TEST_F(CachingAllocatorTest, DeferredBlock_StillHeld_StaysLive) {
  Buffer buffer = Get(kKiB);
  allocator_->DeferFree(buffer, [] { return true; });
  allocator_->Poll();
  EXPECT_EQ(allocator_->stats().live_blocks, 1);
  EXPECT_NE(Get(kKiB).data(), buffer.data());
}

TEST_F(CachingAllocatorTest, Cap_Reached_ErrorNamesLargestHolders) {
  Make(1024 * kMiB, 16 * kMiB);
  Buffer a = Get(6 * kMiB, "weights"), b = Get(4 * kMiB, "logits"), c = Get(4 * kMiB, "logits"),
         d = Get(100, "step");
  const StatusOr<Buffer> refused = allocator_->Allocate(2 * kMiB, "attention");
  EXPECT_THAT(refused, IsStatus(absl::StatusCode::kResourceExhausted,
                                "attention: no room for 2.0 MiB on cpu:0 (the cap is 16.0 MiB"));
  EXPECT_THAT(refused, IsStatus(absl::StatusCode::kResourceExhausted,
                                "largest holders: logits 8.0 MiB in 2 blocks, weights 6.0 MiB in 1 "
                                "block, step 256 B in 1 block"));
  EXPECT_EQ(allocator_->stats().failures, 1);
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, Cap_FreeSegmentsOfOtherSizes_TrimmedAndRetried) {
  Make(1024 * kMiB, 16 * kMiB);
  { Buffer a = Get(6 * kMiB), b = Get(8 * kMiB); }
  Buffer c = Get(14 * kMiB);
  EXPECT_TRUE(c);
  EXPECT_EQ(allocator_->stats().trims, 1);
  EXPECT_EQ(allocator_->stats().failures, 0);
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, DeviceFull_FreeSegments_TrimmedAndRetried) {
  Make(8 * kMiB);
  { Buffer a = Get(6 * kMiB); }
  EXPECT_TRUE(Get(8 * kMiB));
  const StatusOr<Buffer> refused = allocator_->Allocate(20 * kMiB, "x");
  EXPECT_THAT(refused, IsStatus(absl::StatusCode::kResourceExhausted, "the device is full"));
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, Cap_BelowSegmentSize_StillServes) {
  Make(1024 * kMiB, 64 * kKiB);
  Buffer a = Get(40 * kKiB), b = Get(20 * kKiB);
  EXPECT_THAT(allocator_->Allocate(8 * kKiB, "x"), IsStatus(absl::StatusCode::kResourceExhausted));
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, Request_Absurd_InvalidArgument) {
  EXPECT_THAT(allocator_->Allocate(~size_t{0}, "x"), IsStatus(absl::StatusCode::kInvalidArgument));
}

TEST_F(CachingAllocatorTest, Trim_LiveBlockInSegment_KeepsIt) {
  Buffer small = Get(kKiB);
  { Buffer large = Get(4 * kMiB); }
  EXPECT_EQ(allocator_->Trim(), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(source_->held, 2 * kMiB);
  small = Buffer();
  EXPECT_EQ(allocator_->Trim(), static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(source_->held, 0u);
  CheckInvariants();
}

TEST_F(CachingAllocatorTest, Stats_AfterUse_CountBytesAndPeaks) {
  Buffer a = Get(1000), b = Get(3000);
  AllocatorStats stats = allocator_->stats();
  EXPECT_EQ(stats.live_bytes, 1024 + 3072);
  EXPECT_EQ(stats.requested_bytes, 4000);
  EXPECT_EQ(stats.live_blocks, 2);
  EXPECT_EQ(stats.reserved_bytes, static_cast<int64_t>(2 * kMiB));
  b = Buffer();
  stats = allocator_->stats();
  EXPECT_EQ(stats.live_bytes, 1024);
  EXPECT_EQ(stats.peak_live_bytes, 1024 + 3072);
  EXPECT_EQ(stats.allocations, 2);
}

TEST_F(CachingAllocatorTest, Buffer_OutlivesAllocatorHandle_StaysUsable) {
  Buffer buffer = Get(kKiB);
  allocator_.reset();
  std::memset(buffer.data(), 1, buffer.bytes());
  buffer = Buffer();
}

TEST_F(CachingAllocatorTest, RandomUse_ManyBlocks_InvariantsHold) {
  std::vector<Buffer> held(64);
  uint64_t state = 7;
  std::vector<bool> done(2000, false);
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    Buffer& slot = held[(state >> 33) % held.size()];
    if (slot && (state >> 40) % 3 == 0) allocator_->DeferFree(slot, [&done, i] { return done[i]; });
    slot = (state >> 45) % 4 == 0 ? Buffer() : Get((state >> 20) % (3 * kMiB));
    if (i >= 50) done[i - 50] = true;
    if (i % 97 == 0) CheckInvariants();
  }
  held.clear();
  done.assign(2000, true);
  allocator_->Trim();
  EXPECT_EQ(source_->held, 0u);
}

TEST_F(CachingAllocatorTest, Threads_AllocateAndFree_NoTwoShareABlock) {
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &clashes] {
      std::vector<Buffer> held(8);
      for (int i = 0; i < 500; ++i) {
        Buffer& slot = held[(i * 7 + t) % held.size()];
        if (slot && static_cast<unsigned char*>(slot.data())[slot.bytes() - 1] != t + 1) ++clashes;
        slot = Get(static_cast<size_t>(1 + (i * 977 + t * 131) % 20000));
        std::memset(slot.data(), t + 1, slot.bytes());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(clashes, 0);
  CheckInvariants();
  EXPECT_EQ(allocator_->stats().live_blocks, 0);
}

TEST(FormatBytes, Amounts_OneUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 40), "3.0 TiB");
}

}  // namespace
}  // namespace weft
