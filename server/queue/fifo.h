// Which waiting job is next, and why the others are not. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::queue {

struct WaitingJob {
  std::string id;
  int32_t min_ranks = 1;
  int32_t max_ranks = 1;
  // Why it may not start whatever is free; empty: it may.
  std::string held;
};

struct Slots {
  int32_t total = 0;
  int32_t free = 0;
};

struct Turn {
  std::optional<size_t> next;        // index into the waiting jobs
  std::vector<std::string> reasons;  // why each waits; empty for `next`
};

// First come, first served: nothing overtakes a job that waits for slots, so large gangs do start.
// A held job does not hold up the ones behind it.
Turn NextJob(const std::vector<WaitingJob>& waiting, const Slots& slots);

}  // namespace weft::queue
