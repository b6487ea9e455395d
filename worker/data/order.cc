#include "worker/data/order.h"

#include "fabric/base/philox.h"

namespace weft::data {
namespace {

constexpr int kRounds = 4;
constexpr uint64_t kOrderKey =
    0x6f72646572;  // keeps these draws apart from all others of the same seed

}  // namespace

int64_t Permute(uint64_t seed, int64_t epoch, int64_t records, int64_t position) {
  int half_bits = 1;
  while ((uint64_t{1} << (2 * half_bits)) < static_cast<uint64_t>(records)) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = static_cast<uint64_t>(position);
  // The domain is less than four times `records`, so about four walks at most on average; each is a
  // permutation of the domain, so the walk from inside must come back inside.
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t counter_hi =
          (static_cast<uint64_t>(epoch) << 8) | static_cast<uint64_t>(round);
      const uint64_t f = Philox(seed ^ kOrderKey, counter_hi, right).word[0];
      const uint64_t next = left ^ (f & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits) | right;
  } while (x >= static_cast<uint64_t>(records));
  return static_cast<int64_t>(x);
}

}  // namespace weft::data
