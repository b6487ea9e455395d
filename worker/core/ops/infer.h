// Checks that op literals share. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"

namespace weft {

using Metas = std::vector<TensorMeta>;

// InvalidArgument unless every meta has the first one's dtype, a float.
Status CheckFloats(const Metas& in);

// InvalidArgument unless `meta` is f32 or bf16; `name` is the operand's name.
Status CheckNarrow(const TensorMeta& meta, const char* name);

// InvalidArgument unless `meta` is f32; `name` is the operand's name.
Status CheckF32(const TensorMeta& meta, const char* name);

// `axis` counted from the front; InvalidArgument when the shape has no such dimension.
StatusOr<int> CheckAxis(const Shape& shape, int64_t axis);

// `axes` as flags, all when the list is empty. InvalidArgument names a wrong or repeated one.
StatusOr<std::vector<bool>> CheckAxes(const Shape& shape, const std::vector<int64_t>& axes);

// A shape out of an attribute that came from anywhere.
StatusOr<Shape> CheckedShape(DType dtype, const std::vector<int64_t>& dims);

// A dtype by its name; an empty name is f32.
StatusOr<DType> CheckedDType(const std::string& name);

inline std::vector<int64_t> ToInts(const Shape& shape) { return {shape.begin(), shape.end()}; }

}  // namespace weft
