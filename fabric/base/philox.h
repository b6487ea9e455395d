// Philox4x32-10: random numbers as a pure function of (key, counter), so that a draw depends on
// what it is for and never on who draws it or when. Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC11. No standard-library needs, so that kernel files may include
// it.
#pragma once

#include <cstdint>

namespace weft {

struct PhiloxBlock {
  uint32_t word[4];
};

constexpr PhiloxBlock Philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  PhiloxBlock c = {{static_cast<uint32_t>(counter_lo), static_cast<uint32_t>(counter_lo >> 32),
                    static_cast<uint32_t>(counter_hi), static_cast<uint32_t>(counter_hi >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.word[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1) with 24 bits, exact in FP32.
constexpr float UnitFloat(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace weft
