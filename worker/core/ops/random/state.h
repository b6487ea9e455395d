// What binding a random kernel decides.
#pragma once

#include <cstdint>

namespace weft {

enum class Draw { kUniform, kNormal, kDropout };

struct RandomState {
  Draw draw = Draw::kUniform;
  uint64_t key = 0;
  int64_t elements = 0;
  int64_t row_elements = 0;  // of one row of dimension 0; 0 for a scalar
  float first = 0;           // low, std or p
  float second = 0;          // high - low, -, 1 / (1 - p)
};

}  // namespace weft
