// LogStore: the last lines that each job's members wrote, in memory, bounded by count and bytes.
// Not thread-safe: the coordinator locks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace weft::state {

struct LogEntry {
  int64_t number = 0;  // within its job, from 1
  int32_t rank = 0;
  int64_t generation = 0;
  std::string line;
};

class LogStore {
 public:
  explicit LogStore(size_t max_lines_per_job) : max_lines_(max_lines_per_job) {}

  // Lines longer than 8 KiB are cut.
  void Append(const std::string& job, int32_t rank, int64_t generation, std::string line);

  // At most `limit` lines with a number above `after`, of `rank` or of all when it is negative.
  std::vector<LogEntry> ReadAfter(const std::string& job, int32_t rank, int64_t after,
                                  size_t limit) const;

  // The number after which the last `lines` lines of `rank` follow; 0 for `lines` 0.
  int64_t BeforeTail(const std::string& job, int32_t rank, int64_t lines) const;

 private:
  struct Lines {
    std::deque<LogEntry> kept;
    int64_t next = 1;
    size_t bytes = 0;
  };
  const size_t max_lines_;
  absl::flat_hash_map<std::string, Lines> jobs_;
};

}  // namespace weft::state
