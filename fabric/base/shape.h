// Shape: up to kMaxRank dimensions held inline; a plain value without standard-library needs, so
// that kernel files may include it. Dimensions are counts of elements and never negative.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace weft {

inline constexpr int kMaxRank = 8;

class Shape {
 public:
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) Append(d);
  }
  template <typename Iterator>
  constexpr Shape(Iterator first, Iterator last) {
    for (; first != last; ++first) Append(*first);
  }

  constexpr int rank() const { return rank_; }
  // Negative axes count from the end.
  constexpr int64_t dim(int axis) const { return dims_[axis < 0 ? axis + rank_ : axis]; }
  constexpr int64_t operator[](int axis) const { return dim(axis); }
  constexpr void set_dim(int axis, int64_t d) { dims_[axis < 0 ? axis + rank_ : axis] = d; }
  constexpr int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  constexpr const int64_t* begin() const { return dims_; }
  constexpr const int64_t* end() const { return dims_ + rank_; }

  // The caller has checked rank() < kMaxRank.
  constexpr void Append(int64_t d) { dims_[rank_++] = d; }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a.dims_[i] != b.dims_[i]) return false;
    }
    return true;
  }

 private:
  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};

// Strides in elements; same container, may be zero (broadcast) or negative.
using Strides = Shape;

constexpr Strides ContiguousStrides(const Shape& shape) {
  Strides strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides.set_dim(i, step);
    step *= shape.dim(i);
  }
  return strides;
}

// True where elements lie in row-major order without gaps; dimensions of size 1 do not matter.
constexpr bool IsContiguous(const Shape& shape, const Strides& strides) {
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape.dim(i) != 1 && strides.dim(i) != step) return false;
    step *= shape.dim(i);
  }
  return true;
}

}  // namespace weft
