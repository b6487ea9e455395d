// What the bf16 copy of a parameter must be, by the definition in worker/core/ops/README.md. Pure.
#pragma once

#include <bit>
#include <cstdint>

#include "fabric/base/philox.h"
#include "worker/core/dispatch/kernel_args.h"

namespace weft::testing {

// Of global element `i` of a finite `param`, which is exact in f32.
inline double RoundedCopy(double param, bool stochastic, const StepState& step, uint64_t key,
                          int64_t i) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(param));
  const uint32_t kept = bits & 0xffff0000u, rest = bits & 0xffffu;
  bool up = rest > 0x8000u || (rest == 0x8000u && (bits >> 16 & 1) == 1);
  if (stochastic) {
    const PhiloxBlock s = Philox(step.seed, key, static_cast<uint64_t>(step.step));
    const PhiloxBlock words =
        Philox(s.word[0] | uint64_t{s.word[1]} << 32, s.word[2] | uint64_t{s.word[3]} << 32,
               static_cast<uint64_t>(i / 4));
    up = rest + (words.word[i % 4] >> 16) >= 0x10000u;
  }
  return std::bit_cast<float>(kept + (up ? 0x10000u : 0u));
}

}  // namespace weft::testing
