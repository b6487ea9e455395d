// A communicator that goes wrong at a chosen call. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {

struct Fault {
  int64_t at_call = 0;  // counts from 0
  // Not OK: the call aborts the group with this and does nothing else.
  Status fail;
  // Runs before the call; what blocks here delays the rank.
  std::function<void()> before;
  // Flips the lowest bit of the first byte of what the call received.
  bool corrupt = false;
};

std::unique_ptr<Communicator> MakeFaulty(std::unique_ptr<Communicator> inner, Fault fault);

}  // namespace weft::comm
