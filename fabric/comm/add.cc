#include "fabric/comm/add.h"

#include "fabric/base/check.h"

namespace weft::comm {
namespace {

// An element at any address.
template <typename T>
struct Loose {
  typedef T type __attribute__((aligned(1), may_alias));
};

template <typename T>
void AddAll(std::byte* to, const std::byte* a, const std::byte* b, int64_t bytes) {
  using Element = typename Loose<T>::type;
  Element* out = reinterpret_cast<Element*>(to);
  const Element* left = reinterpret_cast<const Element*>(a);
  const Element* right = reinterpret_cast<const Element*>(b);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  // Equal pointers are allowed, and then each element depends on itself alone.
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = left[i] + right[i];
}

}  // namespace

void Add(DType dtype, std::byte* to, const std::byte* a, const std::byte* b, int64_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return AddAll<float>(to, a, b, bytes);
    case DType::kF64:
      return AddAll<double>(to, a, b, bytes);
    // Unsigned, so that overflow wraps.
    case DType::kI32:
      return AddAll<uint32_t>(to, a, b, bytes);
    case DType::kI64:
      return AddAll<uint64_t>(to, a, b, bytes);
    default:
      WEFT_CHECK(false);
  }
}

}  // namespace weft::comm
