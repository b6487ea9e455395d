#include "worker/agent/oom_count.h"

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft::agent {
namespace {

// The number after "oom_kill " in `path`, or -1.
int64_t ReadCount(const std::string& path) {
  std::ifstream in(path);
  std::string key;
  int64_t value = 0;
  while (in >> key >> value) {
    if (key == "oom_kill") return value;
  }
  return -1;
}

}  // namespace

int64_t CountOomKills() {
  // Lines are "id:controllers:path"; version 2 has id 0 and no controllers.
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    int64_t count = -1;
    if (controllers.empty()) {
      count = ReadCount(absl::StrCat("/sys/fs/cgroup", group, "/memory.events"));
    } else if (absl::StrContains(controllers, "memory")) {
      count = ReadCount(absl::StrCat("/sys/fs/cgroup/memory", group, "/memory.oom_control"));
    }
    if (count >= 0) return count;
  }
  return ReadCount("/proc/vmstat");
}

}  // namespace weft::agent
