// How the optimizers round a parameter to bf16, the same bits on every device: FP32 bits in, bf16
// bits out. Pure functions of the standard library, for both compilers.
#pragma once

#include <cstdint>

#include "fabric/base/philox.h"

namespace weft {

// To nearest, ties to even. A NaN stays one.
constexpr uint16_t NearestBF16(uint32_t bits) {
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t up = nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
  return static_cast<uint16_t>(up >> 16);
}

// Away from zero with the probability of what is cut off, which is held against the upper half of a
// random word. Infinity and NaN have nothing to round.
constexpr uint16_t StochasticBF16(uint32_t bits, uint32_t word) {
  if ((bits & 0x7f800000u) == 0x7f800000u) return NearestBF16(bits);
  return static_cast<uint16_t>((bits + (word >> 16)) >> 16);
}

// Seed, op and step pick a stream by a draw of their own.
constexpr PhiloxBlock RoundingStream(uint64_t seed, uint64_t key, int64_t step) {
  return Philox(seed, key, static_cast<uint64_t>(step));
}

// Words of elements [4 * block, 4 * block + 4) of a stream.
constexpr PhiloxBlock RoundingWords(const PhiloxBlock& stream, int64_t block) {
  return Philox(stream.word[0] | uint64_t{stream.word[1]} << 32,
                stream.word[2] | uint64_t{stream.word[3]} << 32, static_cast<uint64_t>(block));
}

}  // namespace weft
