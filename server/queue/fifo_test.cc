#include "server/queue/fifo.h"

#include <gtest/gtest.h>

namespace weft::queue {
namespace {

struct Case {
  const char* name;
  std::vector<WaitingJob> waiting;
  Slots slots;
  std::optional<size_t> next;
  std::vector<std::string> reasons;
};

TEST(NextJob, Table_DecidesAndSaysWhy) {
  const Case cases[] = {
      {"nothing waits", {}, {4, 4}, std::nullopt, {}},
      {"first fits", {{"a", 2, 4, ""}}, {4, 2}, 0, {""}},
      {"others wait behind the one that starts",
       {{"a", 1, 1, ""}, {"b", 1, 1, ""}},
       {4, 4},
       0,
       {"", "waits behind job a"}},
      {"too few free",
       {{"a", 3, 4, ""}, {"b", 1, 1, ""}},
       {4, 2},
       std::nullopt,
       {"waits for 3 free slots; 2 of 4 are free", "waits behind job a"}},
      {"never enough",
       {{"a", 8, 8, ""}},
       {4, 4},
       std::nullopt,
       {"waits for 8 slots; all workers together have 4"}},
      {"no workers",
       {{"a", 1, 1, ""}},
       {0, 0},
       std::nullopt,
       {"waits for 1 slot; no worker is here"}},
      {"a held job lets others pass",
       {{"a", 1, 1, "waits for worker w"}, {"b", 1, 1, ""}},
       {4, 4},
       1,
       {"waits for worker w", ""}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Turn turn = NextJob(c.waiting, c.slots);
    EXPECT_EQ(turn.next, c.next);
    EXPECT_EQ(turn.reasons, c.reasons);
  }
}

}  // namespace
}  // namespace weft::queue
