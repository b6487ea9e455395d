// Additions of collectives: plain element-wise loops, the same bits wherever they run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fabric/base/dtype.h"

namespace weft::comm {

// True for the dtypes that reductions take.
constexpr bool CanAdd(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI32 ||
         dtype == DType::kI64;
}

// to[i] = a[i] + b[i] over `bytes`, whole elements. No alignment is needed; `to` may be `a` or `b`,
// but not overlap them otherwise. Integers wrap.
void Add(DType dtype, std::byte* to, const std::byte* a, const std::byte* b, int64_t bytes);

}  // namespace weft::comm
