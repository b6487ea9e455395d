#include "tests/support/seeded.h"

#include <memory>

namespace weft::testing {

uint64_t SeededStream::Next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double SeededStream::Uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(Next() >> 40) * 0x1p-24;
}

std::vector<float> SeededFloats(uint64_t seed, int64_t count, double low, double high) {
  SeededStream stream(seed);
  std::vector<float> elements(static_cast<size_t>(count));
  for (float& x : elements) x = static_cast<float>(stream.Uniform(low, high));
  return elements;
}

std::vector<int32_t> SeededIds(uint64_t seed, int64_t count, int64_t limit) {
  SeededStream stream(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(stream.Below(limit));
  return ids;
}

CachingAllocator& TestAllocator() {
  static const auto& allocator = *new std::shared_ptr<CachingAllocator>(
      CachingAllocator::Create(MakeCpuSource(), CachingAllocator::Options()));
  return *allocator;
}

Tensor SeededTensor(uint64_t seed, const Shape& shape, double low, double high) {
  return TensorOf(shape, SeededFloats(seed, shape.elements(), low, high));
}

Tensor TensorOf(const Shape& shape, const std::vector<float>& elements) {
  return TensorFrom(TestAllocator(), shape, elements).value();
}

Tensor IdsOf(const Shape& shape, const std::vector<int32_t>& ids) {
  return TensorFrom(TestAllocator(), shape, ids).value();
}

}  // namespace weft::testing
