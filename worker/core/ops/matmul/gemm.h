// Products of f32 matrices for CPU kernels, on one thread: the pieces that kernels cut into tiles.
//
// Every element of a result is one chain of fused multiply-adds over k in rising order, starting
// from zero or from what is there. So its bits depend neither on how many rows or columns are
// computed together, nor on where the operands lie, nor on whether vectors have 8 or 16 lanes
// ("sse2" has no fused multiply-add and rounds twice). Thread-safe: no state.
#pragma once

#include <cstdint>

namespace weft {

// Columns of a packed panel of the right operand, and rows of a packed strip of a transposed left
// one.
inline constexpr int64_t kGemmPanel = 32;
inline constexpr int64_t kGemmStrip = 8;

constexpr int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Packs b[k, columns], columns <= kGemmPanel, as [k][kGemmPanel] with zeros behind; element (i, j)
// of b is at data[i * row_stride + j * column_stride], one of the strides being 1.
void PackPanel(const float* data, int64_t row_stride, int64_t column_stride, int64_t k,
               int64_t columns, float* panel);

// Packs a transposed: rows [0, rows), rows <= kGemmStrip, of a' as [k][kGemmStrip] with zeros
// behind; element (i, p) of a' is at data[p * stride + i].
void PackStrip(const float* data, int64_t stride, int64_t k, int64_t rows, float* strip);

struct Product {
  const float* a = nullptr;  // row-major [m, k] with `a_stride`, or, when that is 0, packed strips
  int64_t a_stride = 0;
  const float* b = nullptr;  // packed panels, `b_stride` floats from one to the next
  int64_t b_stride = 0;
  int64_t m = 0, n = 0, k = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;       // c += instead of c =
  const float* bias = nullptr;   // [n], added to the finished sum
  float* gelu = nullptr;         // when set, gelu(c) goes here, with c_stride
  const float* slope = nullptr;  // when set, c is multiplied by gelu's slope at it, with c_stride
};
void Multiply(const Product& product);

// c[p, q] (+)= sum over rows of left[row, p] * right[row, q]: a weight gradient's block. Rows go in
// chunks of kGemmRows, packed in scratch.
struct RowProduct {
  const float* left = nullptr;
  int64_t left_stride = 0;
  const float* right = nullptr;
  int64_t right_stride = 0;
  int64_t rows = 0, p = 0, q = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;
};
// Not a power of two: strips of it start in different sets of the first cache.
inline constexpr int64_t kGemmRows = 504;
constexpr int64_t RowProductScratch(int64_t p, int64_t q) {  // floats
  return (RoundUp(p, kGemmStrip) + RoundUp(q, kGemmPanel)) * kGemmRows;
}
void MultiplyRows(const RowProduct& product, float* scratch);

}  // namespace weft
