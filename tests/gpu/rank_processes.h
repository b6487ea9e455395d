// Ranks as processes that share a board: each runs named phases and notes how they went; the parent
// watches them, tells of deaths, ends what takes too long and prints a line a phase.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"

namespace weft {

struct PhaseReport {
  std::atomic<int32_t> state;  // 0 open, 1 passed, 2 failed
  double milliseconds;
  char text[400];
};

// In memory that all processes share; all zero at first.
struct Board {
  static constexpr int kMostPhases = 32;
  static constexpr int kMostRanks = 16;
  std::atomic<int32_t> dead;  // 1 + the rank that ended by a signal
  char names[kMostPhases][64];
  PhaseReport reports[kMostPhases][kMostRanks];
};

// A rank's side. All ranks run the same phases.
class PhaseNotes {
 public:
  PhaseNotes(Board* board, int32_t rank) : board_(board), rank_(rank) {}

  // The rank that is known to be dead, or -1.
  int32_t dead() const { return board_->dead.load() - 1; }
  Status Run(const std::string& name, absl::FunctionRef<Status()> phase);

 private:
  Board* const board_;
  const int32_t rank_;
  int phase_ = 0;
};

// Forks `ranks` processes that run `body`, and prints how it went. `victim` is expected to end by
// SIGKILL, the others to return OK by `deadline`. CUDA must not have been used by this process.
bool RunRanks(const std::string& title, int32_t ranks, int32_t victim, Deadline deadline,
              const std::function<Status(int32_t rank, PhaseNotes&)>& body);

// Polls `done` until it is true, fails, or `limit` is over.
Status PollUntil(const std::string& what, absl::Duration limit,
                 absl::FunctionRef<StatusOr<bool>()> done);

}  // namespace weft
