// Seeded data and tensors: the same numbers on every machine and in every run.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/shape.h"
#include "worker/core/alloc/caching_allocator.h"
#include "worker/core/tensor/tensor.h"

namespace weft::testing {

// A small generator (splitmix64), for data only: it has nothing to do with the ops' random numbers.
class SeededStream {
 public:
  explicit SeededStream(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // In [low, high), a multiple of 2^-24 of the width.
  double Uniform(double low, double high);
  // In [0, limit).
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

std::vector<float> SeededFloats(uint64_t seed, int64_t count, double low = -1, double high = 1);
std::vector<int32_t> SeededIds(uint64_t seed, int64_t count, int64_t limit);

// Over a CPU allocator of their own that lives as long as they do. Fails the process when there is
// no memory.
Tensor SeededTensor(uint64_t seed, const Shape& shape, double low = -1, double high = 1);
Tensor TensorOf(const Shape& shape, const std::vector<float>& elements);
Tensor IdsOf(const Shape& shape, const std::vector<int32_t>& ids);

// The allocator behind them, shared by the whole test process.
CachingAllocator& TestAllocator();

}  // namespace weft::testing
