// Why a gang failed, out of everything that its members and workers said. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/status.h"

namespace weft::recovery {

enum class Seen {
  kError,   // a member said so
  kExited,  // its process is gone
  kLost,    // its worker is gone, or no longer knows it
};

struct Observation {
  Seen seen = Seen::kError;
  int32_t rank = 0;
  std::string worker = {};
  int64_t step = -1;  // last confirmed, -1: none
  Status error = {};  // kError: it; kExited: what the member had said before; kLost: why
  int32_t exit_code = 0;
  int32_t signal = 0;
  bool out_of_memory = false;
};

// True: nothing that may still arrive would be a better cause. False: it may be the mere
// consequence of another member's end, such as "peer is gone".
bool IsDecisive(const Observation& o);

struct JobAt {
  std::string job;
  int64_t generation = 0;
};

// The best cause among `seen` (not empty), the earliest of equals, with an ErrorDetail that names
// worker, rank and step.
Status TrueCause(const JobAt& at, const std::vector<Observation>& seen);

// "SIGKILL", "signal 77".
std::string SignalName(int signal);

}  // namespace weft::recovery
