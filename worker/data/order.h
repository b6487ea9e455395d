// The order of training samples: a pure function of (seed, epoch, position).
#pragma once

#include <cstdint>

namespace weft::data {

// The record at `position` (0 <= position < records) of epoch `epoch`: a pseudo-random permutation
// of [0, records), evaluated at one point in constant time and memory. A Feistel network over the
// next power of four with Philox as round function, walked until it lands inside (Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002).
int64_t Permute(uint64_t seed, int64_t epoch, int64_t records, int64_t position);

// The record of training sample `number`, counted over the whole run.
inline int64_t RecordOf(uint64_t seed, int64_t records, int64_t number) {
  return Permute(seed, number / records, records, number % records);
}

}  // namespace weft::data
