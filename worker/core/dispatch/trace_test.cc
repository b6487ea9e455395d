#include "worker/core/dispatch/trace.h"

#include <thread>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(TraceRing, MoreThanCapacity_KeepsNewestInOrder) {
  TraceRing ring(5);
  EXPECT_EQ(ring.capacity(), 8u);
  for (int64_t i = 0; i < 20; ++i) ring.Add({"op", i, 1, 2 * i});
  const std::vector<TraceRecord> records = ring.Dump();
  ASSERT_EQ(records.size(), 8u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].start_ns, static_cast<int64_t>(12 + i));
    EXPECT_EQ(records[i].bytes, 2 * records[i].start_ns);
  }
  EXPECT_EQ(ring.dropped(), 0);
}

TEST(TraceRing, ManyWritersAndAReader_NoTornRecord) {
  TraceRing ring(16);
  std::vector<std::thread> writers;
  std::atomic<bool> done{false};
  for (int64_t t = 0; t < 3; ++t) {
    writers.emplace_back([&ring, t] {
      for (int64_t i = 0; i < 3000; ++i) {
        const int64_t x = t * 10000 + i;
        ring.Add({"op", x, x + 1, x + 2});
      }
    });
  }
  int64_t torn = 0;
  std::thread reader([&] {
    while (!done) {
      for (const TraceRecord& r : ring.Dump()) {
        torn += r.duration_ns != r.start_ns + 1 || r.bytes != r.start_ns + 2;
      }
    }
  });
  for (std::thread& w : writers) w.join();
  done = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_LE(ring.Dump().size(), 16u);
}

}  // namespace
}  // namespace weft
