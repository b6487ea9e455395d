// The integer formulas that golden runs take weights and inputs from; make_golden.py states them.
#pragma once

#include <cstdint>

namespace weft::testing {

inline uint32_t FormulaHash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// In [-1, 1), exact: element `element` of tensor number `tensor`.
inline float FormulaValue(uint32_t tensor, uint32_t element) {
  const uint32_t u = FormulaHash((tensor + 1) * 0x9E3779B9u + element);
  return static_cast<float>(u >> 8) * 0x1p-23f - 1.0f;
}

}  // namespace weft::testing
