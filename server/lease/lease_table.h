// LeaseTable: which member holds which worker's slot. Not thread-safe: the coordinator locks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace weft::lease {

class LeaseTable {
 public:
  void Grant(const std::string& job, int64_t generation, int32_t rank, const std::string& worker) {
    holders_[{job, generation, rank}] = worker;
    ++used_[worker];
  }
  // No effect when it holds none.
  void Return(const std::string& job, int64_t generation, int32_t rank) {
    const auto it = holders_.find({job, generation, rank});
    if (it == holders_.end()) return;
    if (--used_[it->second] == 0) used_.erase(it->second);
    holders_.erase(it);
  }
  int32_t Used(const std::string& worker) const {
    const auto it = used_.find(worker);
    return it == used_.end() ? 0 : it->second;
  }

 private:
  std::map<std::tuple<std::string, int64_t, int32_t>, std::string> holders_;
  std::map<std::string, int32_t> used_;
};

}  // namespace weft::lease
