// What `weft-worker probe` prints: one line of JSON about this machine as a worker sees it, for
// `weft doctor`, which links no CUDA.
#pragma once

#include <string>

namespace weft {

std::string ProbeJson();

}  // namespace weft
