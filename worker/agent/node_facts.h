// What this node has: processor, cores, memory, instruction sets. Reads the kernel's files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::agent {

struct NodeFacts {
  std::string cpu;    // model name
  int32_t cores = 1;  // that this process may use: its affinity, cut by its control group's quota
  int64_t memory_bytes = 0;
  std::vector<std::string> instruction_sets;  // "avx512", "avx2", "sse2"; best first
};

NodeFacts ReadNodeFacts();

}  // namespace weft::agent
