// How often the kernel killed a process for memory, in this process's control group or, where that
// is not known, on this node. -1: unknown.
#pragma once

#include <cstdint>

namespace weft::agent {

int64_t CountOomKills();

}  // namespace weft::agent
