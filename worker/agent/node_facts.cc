#include "worker/agent/node_facts.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace weft::agent {
namespace {

std::string ReadCpuModel() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (absl::StartsWith(line, "model name") && colon != std::string::npos) {
      return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  }
  return "unknown";
}

int32_t CountCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int32_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // "max 100000" or "150000 100000": microseconds in each period.
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && quota > 0 && period > 0) {
    cores = std::min(cores, static_cast<int32_t>(std::ceil(quota / period)));
  }
  return std::max(cores, 1);
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq");
}

}  // namespace

NodeFacts ReadNodeFacts() {
  NodeFacts facts;
  facts.cpu = ReadCpuModel();
  facts.cores = CountCores();
  struct sysinfo memory = {};
  if (sysinfo(&memory) == 0) {
    facts.memory_bytes = static_cast<int64_t>(memory.totalram) * memory.mem_unit;
  }
  if (HasAvx512()) facts.instruction_sets.push_back("avx512");
  if (HasAvx2()) facts.instruction_sets.push_back("avx2");
  facts.instruction_sets.push_back("sse2");
  return facts;
}

}  // namespace weft::agent
