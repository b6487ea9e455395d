// A flight record: the last calls of a communicator with times and outcome, readable from another
// thread while a call runs or hangs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {

// Thread-safe.
class FlightRecord {
 public:
  struct Entry {
    uint64_t sequence = 0;  // counts all calls from 0
    std::string call;       // ToString of it
    absl::Time started;
    absl::Duration took;  // so far, of a running call, when read through Entries
    bool running = true;
    Status status;
  };

  explicit FlightRecord(size_t capacity, Clock* clock = &RealClock());

  uint64_t Begin(const CollectiveCall& call);
  void End(uint64_t sequence, const Status& status);

  // Oldest first.
  std::vector<Entry> Entries() const;
  // One line a call.
  std::string Text() const;

 private:
  struct Slot {
    Entry entry;
    absl::Duration began;  // monotonic
  };

  const size_t capacity_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::deque<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Writes every call of `inner` into `record`.
std::unique_ptr<Communicator> MakeRecorded(std::unique_ptr<Communicator> inner,
                                           std::shared_ptr<FlightRecord> record);

}  // namespace weft::comm
