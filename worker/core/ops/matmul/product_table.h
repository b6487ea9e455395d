// Which candidate of a product is fastest where it was measured, by Product::KeyOf: rows that
// tests/gpu/bench/products_bench prints. Other shapes, and rows that the GPU at hand refuses, go by
// the library's own choice.
#pragma once

namespace weft::cuda {

struct ProductRow {
  const char* key;
  const char* candidate;
};

// The first row, which no product has, keeps the array from being empty.
inline constexpr ProductRow kProductRows[] = {
    {"", "default"},
};

}  // namespace weft::cuda
