// A list of what is wrong with a message, by field path. Not thread-safe.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "fabric/base/error_detail.h"
#include "fabric/base/status.h"

namespace weft::admit {

class Problems {
 public:
  template <typename... Args>
  void Add(const std::string& path, const Args&... what) {
    if (lines_.size() < kMost) lines_.push_back(absl::StrCat(path, ": ", what...));
  }
  void Add(const std::string& path, const Status& status) {
    if (!status.ok()) Add(path, status.message());
  }

  // Checks that report and say whether all is well.
  template <typename T>
  bool Within(const std::string& path, T value, T least, T most) {
    if (value >= least && value <= most) return true;
    Add(path, "is ", value, ", wants ", least, " to ", most);
    return false;
  }
  bool AtLeastZero(const std::string& path, double value) {
    if (std::isfinite(value) && value >= 0) return true;
    Add(path, "is ", value, ", wants a number from 0");
    return false;
  }
  bool Positive(const std::string& path, double value) {
    if (std::isfinite(value) && value > 0) return true;
    Add(path, "is ", value, ", wants a number above 0");
    return false;
  }

  bool empty() const { return lines_.empty(); }
  Status ToStatus() const {
    if (empty()) return absl::OkStatus();
    return WithDetail(
        InvalidArgument(absl::StrJoin(lines_, "\n")),
        {.origin = "admit", .action = ErrorAction::kFixInput, .worker = "", .job = "", .op = ""});
  }

 private:
  static constexpr size_t kMost = 20;
  std::vector<std::string> lines_;
};

}  // namespace weft::admit
