// What binding a reduction decides.
#pragma once

#include <cstdint>

#include "fabric/base/dtype.h"
#include "worker/core/ops/strided.h"

namespace weft {

enum class Reduction { kSum, kMean, kMax };
enum class RowFunction { kSoftmax, kLogSoftmax, kArgmax };

// Of one call: results are `outer` x `columns`; each is over `count` elements, cut into `segments`
// of `segment` that are reduced on their own and then met in a tree. All of it follows from the
// shape and the axes, not from strides, so a view and its copy give the same bits.
struct ReduceState {
  Reduction kind = Reduction::kSum;
  DType dtype = DType::kF32;
  int64_t outer = 1;
  int64_t columns = 1;
  int64_t count = 1;
  int64_t segment = 1;
  int64_t segments = 1;
  // Where things are: operand 0 over the kept dimensions before the columns; over the reduced
  // dimensions; and over the columns.
  Walk kept;
  Walk reduced;
  Walk column;
};

struct RowState {
  RowFunction function = RowFunction::kSoftmax;
  int64_t rows = 0;
  int64_t width = 0;
};

}  // namespace weft
