// Rows for the conformance suite: what every backend must do right at every group size.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/dtype.h"
#include "fabric/comm/collective.h"

namespace weft::comm {

struct CommCase {
  Kind kind;
  DType dtype;
  int64_t count;  // of all_to_all: of one chunk
  Order order = Order::kRing;
};

// Each kind with each dtype that it takes, over counts from none to several blocks.
std::vector<CommCase> CommCases();

}  // namespace weft::comm
