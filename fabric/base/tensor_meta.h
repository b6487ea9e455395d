// What is known of a tensor without its bytes: dtype and shape.
#pragma once

#include <string>

#include "fabric/base/dtype.h"
#include "fabric/base/shape.h"
#include "fabric/base/status.h"

namespace weft {

struct TensorMeta {
  DType dtype = DType::kF32;
  Shape shape;

  int64_t elements() const { return shape.elements(); }
  int64_t bytes() const { return elements() * static_cast<int64_t>(SizeOf(dtype)); }
  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

// "[2, 3]" and "f32[2, 3]".
std::string ToString(const Shape& shape);
std::string ToString(const TensorMeta& meta);

// InvalidArgument when a dimension is negative, the rank exceeds kMaxRank, or the byte count
// overflows or exceeds 2^40 (no tensor may be larger). Safe on hostile input.
Status CheckShape(DType dtype, const int64_t* dims, int rank);

// "f32" -> kF32; kInvalid when there is no such dtype.
DType DTypeFromName(absl::string_view name);

}  // namespace weft
