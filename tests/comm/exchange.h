// What ranks send and must receive in each row of CommCases, in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/comm/cases.h"
#include "fabric/comm/collective.h"

namespace weft::comm {

struct Exchange {
  std::vector<std::byte> send;
  std::vector<std::byte> recv;
  std::vector<std::byte> expected;  // empty: nothing is received
};

// What `rank` sends and must receive in `call`. Values are small whole numbers, so that sums are
// exact in every dtype and order.
Exchange MakeExchange(const CollectiveCall& call, int32_t rank, int32_t size);

// The calls that `rank` makes for `row`, without buffers. Send rows pass along the line of ranks,
// recv rows back.
std::vector<CollectiveCall> CallsOf(const CommCase& row, int32_t rank, int32_t size);

}  // namespace weft::comm
