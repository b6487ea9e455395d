#include "fabric/comm/cases.h"

#include "fabric/comm/add.h"

namespace weft::comm {
namespace {

// Fewer than ranks, odd, around the limits of the short paths, more than a block.
constexpr int64_t kCounts[] = {0, 1, 2, 5, 37, 2047, 2049, 8195, 20011};
// For dtypes after the first: the same paths, fewer sizes.
constexpr int64_t kFewCounts[] = {0, 1, 13, 4099, 5003};

void AddRows(std::vector<CommCase>& cases, Kind kind, DType dtype, Order order) {
  if (dtype == DType::kF32) {
    for (const int64_t count : kCounts) cases.push_back({kind, dtype, count, order});
  } else {
    for (const int64_t count : kFewCounts) cases.push_back({kind, dtype, count, order});
  }
}

}  // namespace

std::vector<CommCase> CommCases() {
  std::vector<CommCase> cases;
  for (const KindRow& kind : kKinds) {
    if (kind.kind == Kind::kBarrier) {
      cases.push_back({kind.kind, DType::kU8, 0});
      continue;
    }
    for (const DTypeRow& row : kDTypes) {
      if (row.dtype == DType::kInvalid || (kind.reduces && !CanAdd(row.dtype))) continue;
      AddRows(cases, kind.kind, row.dtype, Order::kRing);
      if (kind.reduces) AddRows(cases, kind.kind, row.dtype, Order::kOrdered);
    }
    // More blocks than travel at a time, with an odd end.
    if (!kind.reduces) continue;
    for (const Order order : {Order::kRing, Order::kOrdered}) {
      cases.push_back({kind.kind, DType::kF32, 300007, order});
    }
  }
  return cases;
}

}  // namespace weft::comm
