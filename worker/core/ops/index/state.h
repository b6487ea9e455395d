// What binding an index kernel decides.
#pragma once

#include <cstdint>

namespace weft {

struct EmbeddingState {
  int64_t rows = 0;   // of the table
  int64_t width = 0;  // of a row
  int64_t ids = 0;
};

}  // namespace weft
