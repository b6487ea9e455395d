// Adds partial sums on a device in a fixed order. What is called returns 0 or the runtime's error
// number; work is queued on `stream` (StreamTag::handle) and may be recorded.
#pragma once

#include <cstdint>

#include "fabric/base/dtype.h"

namespace weft {

// Which values to add, and in which order: a program for a stack, as in OrderedExchange. Travels in
// a kernel's arguments, hence the limit (4 KiB in all).
struct OrderedSum {
  static constexpr int kMostNodes = 384;
  static constexpr int kMostDepth = 16;  // enough for 2^15 lanes
  const void* from[kMostNodes];
  uint8_t adds[kMostNodes];
  int32_t nodes = 0;
  int32_t depth = 0;
};

// to[0, count) = the sum of `from`, element by element, in f32, f64, i32 or i64 (integers wrap).
// `to` may be one of `from`, but not overlap it otherwise. The bits depend on the values and the
// program alone. `processors`: of the device; sets how much runs at once.
int AddInOrder(DType dtype, const OrderedSum& sum, void* to, int64_t count, int processors,
               void* stream);

// Loads the kernels, which the first launch would do otherwise: a load may wait for what runs.
int LoadAddInOrder();

}  // namespace weft
