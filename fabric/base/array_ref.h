// What a kernel sees of a tensor: pointer, dtype, shape, strides. Owns nothing.
#pragma once

#include "fabric/base/dtype.h"
#include "fabric/base/shape.h"

namespace weft {

struct ArrayRef {
  void* data = nullptr;
  DType dtype = DType::kInvalid;
  Shape shape;
  Strides strides;  // in elements

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t elements() const { return shape.elements(); }
  bool contiguous() const { return IsContiguous(shape, strides); }
};

inline ArrayRef MakeArrayRef(void* data, DType dtype, const Shape& shape) {
  return {data, dtype, shape, ContiguousStrides(shape)};
}

}  // namespace weft
