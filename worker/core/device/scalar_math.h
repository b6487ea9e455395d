// exp, log, sine and cosine of one double, out of additions and multiplications only, so that every
// machine and library gives the same bits. For tables and per-row values; errors are near 1e-15
// relative (1e-15 absolute for sine and cosine) over the ranges given.
#pragma once

#include <cstdint>
#include <cstring>

namespace weft {

namespace internal {
inline constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits: n * kLn2High is exact
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

inline double BitsToDouble(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint64_t DoubleToBits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline double RoundToInteger(double x) {
  return static_cast<double>(static_cast<int64_t>(x < 0 ? x - 0.5 : x + 0.5));
}
}  // namespace internal

// e^x for |x| <= 700.
inline double ExactExp(double x) {
  const double n = internal::RoundToInteger(x * 1.44269504088896340736);
  const double r = (x - n * internal::kLn2High) - n * internal::kLn2Low;
  double sum = 1;  // Taylor to r^14; |r| <= 0.35
  for (int i = 14; i >= 1; --i) sum = 1 + sum * r / i;
  const uint64_t exponent = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023);
  return sum * internal::BitsToDouble(exponent << 52);
}

// Natural logarithm of a positive, normal x.
inline double ExactLog(double x) {
  uint64_t bits = internal::DoubleToBits(x);
  int64_t n = static_cast<int64_t>(bits >> 52) - 1023;
  double m = internal::BitsToDouble((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    n += 1;
  }
  const double s = (m - 1) / (m + 1);  // log m = 2 (s + s^3 / 3 + ...); |s| <= 0.172
  const double s2 = s * s;
  double sum = 0;
  for (int i = 21; i >= 1; i -= 2) sum = sum * s2 + 1.0 / i;
  return static_cast<double>(n) * internal::kLn2High +
         (2 * s * sum + static_cast<double>(n) * internal::kLn2Low);
}

struct SineCosine {
  double sine = 0;
  double cosine = 1;
};

// Of x radians, |x| <= 1e8.
inline SineCosine ExactSineCosine(double x) {
  // pi / 2 in three parts of 33 bits or less: n times the first two is exact for |n| < 2^20.
  constexpr double kPart0 = 1.57079632673412561417e+00;
  constexpr double kPart1 = 6.07710050630396597660e-11;
  constexpr double kPart2 = 2.02226624879595063154e-21;
  const double n = internal::RoundToInteger(x * 0.63661977236758134308);
  const double r = ((x - n * kPart0) - n * kPart1) - n * kPart2;
  const double r2 = r * r;
  double sine = 1, cosine = 1;
  for (int i = 20; i >= 2; i -= 2) {
    sine = 1 - sine * r2 / (i * (i + 1));
    cosine = 1 - cosine * r2 / ((i - 1) * i);
  }
  sine *= r;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace weft
