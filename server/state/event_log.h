// EventLog: the numbered events of each job, bounded: older ones are dropped and a reader that
// missed some gets a gap marker. Keeps memory only; its owner stores what must survive. Not
// thread-safe: the coordinator locks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "proto/job.pb.h"

namespace weft::state {

class EventLog {
 public:
  explicit EventLog(size_t max_events_per_job) : max_events_(max_events_per_job) {}

  // Takes events that were stored, in order; later ones get numbers above `ceiling`.
  void Restore(const std::string& job, std::vector<v1::JobEvent> events, int64_t ceiling);

  // The number that the next event of `job` gets.
  int64_t NextSequence(const std::string& job) const;

  // Appends `event`, whose sequence must be NextSequence or above.
  void Append(const std::string& job, v1::JobEvent event);

  // At most `limit` events after `after`, the first a gap marker when some were dropped.
  std::vector<v1::JobEvent> ReadAfter(const std::string& job, int64_t after, size_t limit) const;

  // The lowest number that is kept; 0 when there is none.
  int64_t FirstKept(const std::string& job) const;

 private:
  struct Events {
    std::deque<v1::JobEvent> kept;
    int64_t next = 1;
  };
  const size_t max_events_;
  absl::flat_hash_map<std::string, Events> jobs_;
};

}  // namespace weft::state
