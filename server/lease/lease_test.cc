#include <gtest/gtest.h>

#include "server/lease/gang_policy.h"
#include "server/lease/lease_table.h"

namespace weft::lease {
namespace {

using Workers = std::vector<std::string>;

struct Case {
  const char* name;
  int32_t min, max;
  Spread spread;
  std::vector<FreeSlots> slots;
  Workers placed;
};

TEST(PlaceGang, Table_WholeGangOrNothing) {
  const Case cases[] = {
      {"no worker", 1, 1, Spread::kAnywhere, {}, {}},
      {"too few", 3, 4, Spread::kAnywhere, {{"a", 1}, {"b", 1}}, {}},
      {"fullest that holds all", 2, 2, Spread::kAnywhere, {{"a", 4}, {"b", 2}}, {"b", "b"}},
      {"as many as are free", 1, 4, Spread::kAnywhere, {{"a", 1}, {"b", 2}}, {"b", "b", "a"}},
      {"contiguous", 4, 4, Spread::kAnywhere, {{"a", 2}, {"b", 3}}, {"b", "b", "b", "a"}},
      {"equal ones by name", 2, 2, Spread::kAnywhere, {{"b", 1}, {"a", 1}}, {"a", "b"}},
      {"one worker only, fewer ranks", 1, 4, Spread::kOneWorker, {{"a", 1}, {"b", 2}}, {"b", "b"}},
      {"one worker only, too few", 3, 4, Spread::kOneWorker, {{"a", 2}, {"b", 2}}, {}},
      {"more used than there are", 1, 1, Spread::kAnywhere, {{"a", -1}, {"b", 1}}, {"b"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(PlaceGang(c.min, c.max, c.spread, c.slots), c.placed);
  }
}

TEST(LeaseTable, Return_FreesOnce) {
  LeaseTable leases;
  leases.Grant("j", 1, 0, "a");
  leases.Grant("j", 1, 1, "a");
  EXPECT_EQ(leases.Used("a"), 2);
  leases.Return("j", 1, 0);
  leases.Return("j", 1, 0);
  leases.Return("j", 2, 1);
  EXPECT_EQ(leases.Used("a"), 1);
}

}  // namespace
}  // namespace weft::lease
