// On which workers a gang's ranks go: the whole gang or nothing. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::lease {

struct FreeSlots {
  std::string worker;
  int32_t free = 0;
};

enum class Spread { kAnywhere, kOneWorker };

// Workers by rank, each worker's ranks contiguous; as many as are free within [min, max]. On one
// worker when one can hold them all (the fullest that can), else on as few as possible. Empty: not
// even `min` are free.
std::vector<std::string> PlaceGang(int32_t min_ranks, int32_t max_ranks, Spread spread,
                                   std::vector<FreeSlots> slots);

}  // namespace weft::lease
