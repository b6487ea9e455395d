// Elementary functions on Highway vectors of f32 or f64: no libm, so the bits depend on the
// instruction set only, and a lane's result on its own argument only. NaN goes in and comes out;
// f32 errors are at most about 2 ulp (f64: a few). Compiled once for each target by the files that
// include it.
#if defined(WEFT_WORKER_CORE_OPS_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_WORKER_CORE_OPS_VECTOR_MATH_INL_H_
#undef WEFT_WORKER_CORE_OPS_VECTOR_MATH_INL_H_
#else
#define WEFT_WORKER_CORE_OPS_VECTOR_MATH_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using VecOf = hn::Vec<D>;

// sum of coefficients[i] * x^i.
template <class D, class V, size_t kCount>
HWY_INLINE V Horner(D d, V x, const hn::TFromD<D> (&coefficients)[kCount]) {
  V sum = hn::Set(d, coefficients[kCount - 1]);
  for (size_t i = kCount - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, coefficients[i]));
  return sum;
}

// Where the two widths differ.
template <typename T>
struct FloatTraits;
template <>
struct FloatTraits<float> {
  using Int = int32_t;
  static constexpr int kMantissa = 23;
  static constexpr Int kBias = 127;
  static constexpr float kRoundMagic = 0x1.8p23f;
  static constexpr float kLn2High = 0x1.62e4p-1f;  // n * it is exact for all exponents n
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kExpLow = -104.0f, kExpHigh = 89.0f;  // beyond: 0 and infinity
  static constexpr float kTanhHigh = 10.0f;                    // beyond: 1
  static constexpr Int kSqrtHalf = 0x3f3504f3;
  static constexpr float kSubnormalScale = 0x1p25f;
  static constexpr Int kSubnormalShift = 25;
  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, Taylor.
  static constexpr float kExpTail[] = {1.0f / 2,   1.0f / 6,   1.0f / 24,
                                       1.0f / 120, 1.0f / 720, 1.0f / 5040};
  // (ln((1 + s) / (1 - s)) - 2 s) / s^3 in s^2, for |s| <= 0.172.
  static constexpr float kLogTail[] = {2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9, 2.0f / 11};
};
template <>
struct FloatTraits<double> {
  using Int = int64_t;
  static constexpr int kMantissa = 52;
  static constexpr Int kBias = 1023;
  static constexpr double kRoundMagic = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kExpLow = -746.0, kExpHigh = 710.0;
  static constexpr double kTanhHigh = 20.0;
  static constexpr Int kSqrtHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kSubnormalScale = 0x1p54;
  static constexpr Int kSubnormalShift = 54;
  static constexpr double kExpTail[] = {
      1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
      1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  static constexpr double kLogTail[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                                        2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
};

// x limited from above or below; NaN stays.
template <class V>
HWY_INLINE V LimitAbove(V x, V high) {
  return hn::IfThenElse(hn::Gt(x, high), high, x);
}
template <class V>
HWY_INLINE V LimitBelow(V x, V low) {
  return hn::IfThenElse(hn::Lt(x, low), low, x);
}

// The greater one; NaN when either is.
template <class V>
HWY_INLINE V MaxKeepNan(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
}

// e^x = 2^n (1 + part), n as a whole number.
template <class D>
struct ExpParts {
  VecOf<D> part;
  hn::Vec<hn::RebindToSigned<D>> n;
};
template <class D, class V>
HWY_INLINE ExpParts<D> SplitExp(D d, V x) {
  using T = hn::TFromD<D>;
  using Traits = FloatTraits<T>;
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, Traits::kRoundMagic);
  const V shifted = hn::MulAdd(x, hn::Set(d, static_cast<T>(1.4426950408889634)), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, Traits::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, Traits::kLn2Low), r);
  const V part = hn::MulAdd(hn::Mul(r, r), Horner(d, r, Traits::kExpTail), r);
  return {part, hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic))};
}

// 2^n for n within the normal exponents.
template <class D, class VI>
HWY_INLINE VecOf<D> PowerOfTwo(D d, VI n) {
  using Traits = FloatTraits<hn::TFromD<D>>;
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<Traits::kMantissa>(hn::Add(n, hn::Set(di, Traits::kBias))));
}

template <class D, class V>
HWY_INLINE V ExpOf(D d, V x) {
  using Traits = FloatTraits<hn::TFromD<D>>;
  x = LimitBelow(LimitAbove(x, hn::Set(d, Traits::kExpHigh)), hn::Set(d, Traits::kExpLow));
  const ExpParts<D> parts = SplitExp(d, x);
  // In two steps, since 2^n alone may leave the exponents' range.
  const auto half = hn::BitCast(hn::RebindToSigned<D>(), hn::ShiftRight<1>(parts.n));
  const V first = PowerOfTwo(d, half);
  const V second = PowerOfTwo(d, hn::Sub(parts.n, half));
  return hn::Mul(hn::Mul(hn::Add(parts.part, hn::Set(d, hn::TFromD<D>{1})), first), second);
}

// e^x for x <= 0; results under the least normal number are 0, which costs less.
template <class D, class V>
HWY_INLINE V ExpOfNegative(D d, V x) {
  using T = hn::TFromD<D>;
  const V low = hn::Set(d, sizeof(T) == 4 ? static_cast<T>(-87.3) : static_cast<T>(-708.3));
  const ExpParts<D> parts = SplitExp(d, LimitBelow(x, low));
  const V power = PowerOfTwo(d, parts.n);
  const V y = hn::MulAdd(parts.part, power, power);
  return hn::IfThenZeroElse(hn::Lt(x, low), y);
}

// fdlibm's form: ln(1 + f) = f - (f^2/2 - s (f^2/2 + R(s^2))), s = f / (2 + f).
template <class D, class V>
HWY_INLINE V LogOf(D d, V x) {
  using T = hn::TFromD<D>;
  using Traits = FloatTraits<T>;
  using Int = typename Traits::Int;
  const hn::RebindToSigned<D> di;
  const V zero = hn::Zero(d);
  const auto subnormal = hn::Lt(x, hn::Set(d, std::numeric_limits<T>::min()));
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, Traits::kSubnormalScale)), x);
  const Int one_bits = Traits::kBias << Traits::kMantissa;
  const auto bits = hn::Add(hn::BitCast(di, scaled), hn::Set(di, one_bits - Traits::kSqrtHalf));
  const auto shift =
      hn::IfThenElseZero(hn::RebindMask(di, subnormal), hn::Set(di, Traits::kSubnormalShift));
  const auto e =
      hn::Sub(hn::Sub(hn::ShiftRight<Traits::kMantissa>(bits), hn::Set(di, Traits::kBias)), shift);
  const Int mask = (Int{1} << Traits::kMantissa) - 1;
  const V m =
      hn::BitCast(d, hn::Add(hn::And(bits, hn::Set(di, mask)), hn::Set(di, Traits::kSqrtHalf)));
  const V f = hn::Sub(m, hn::Set(d, T{1}));
  const V s = hn::Div(f, hn::Add(f, hn::Set(d, T{2})));
  const V z = hn::Mul(s, s);
  const V half_square = hn::Mul(hn::Mul(f, f), hn::Set(d, T{0.5}));
  const V tail = hn::Mul(z, Horner(d, z, Traits::kLogTail));
  const V n = hn::ConvertTo(d, e);
  const V low = hn::MulAdd(s, hn::Add(half_square, tail), hn::Mul(n, hn::Set(d, Traits::kLn2Low)));
  V y = hn::MulAdd(n, hn::Set(d, Traits::kLn2High), hn::Sub(f, hn::Sub(half_square, low)));
  const T infinity = std::numeric_limits<T>::infinity();
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, infinity)), y, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Set(d, -infinity), y);
  return hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
}

// (e^2|x| - 1) / (e^2|x| + 1) with the sign of x; e^2|x| - 1 is exact to its own size near 0.
template <class D, class V>
HWY_INLINE V TanhOf(D d, V x) {
  using T = hn::TFromD<D>;
  const V t = LimitAbove(hn::Abs(x), hn::Set(d, FloatTraits<T>::kTanhHigh));
  const ExpParts<D> parts = SplitExp(d, hn::Add(t, t));
  const V power = PowerOfTwo(d, parts.n);
  const V em1 = hn::MulAdd(power, parts.part, hn::Sub(power, hn::Set(d, T{1})));
  return hn::CopySign(hn::Div(em1, hn::Add(em1, hn::Set(d, T{2}))), x);
}

template <class D, class V>
HWY_INLINE V SigmoidOf(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>{1});
  const V e = ExpOfNegative(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// 2 sqrt(2/pi) and the cube's share in gelu's argument.
inline constexpr double kGeluSlope = 1.5957691216057308;
inline constexpr double kGeluCube = 0.044715;

// x/2 (1 + tanh(u)) = x sigmoid(2 u).
template <class D, class V>
HWY_INLINE V GeluOf(D d, V x) {
  using T = hn::TFromD<D>;
  const V slope = hn::MulAdd(hn::Mul(x, x), hn::Set(d, static_cast<T>(kGeluSlope * kGeluCube)),
                             hn::Set(d, static_cast<T>(kGeluSlope)));
  return hn::Mul(x, SigmoidOf(d, hn::Mul(x, slope)));
}

// d gelu / dx = s + x s (1 - s) (2 u)', s = sigmoid(2 u).
template <class D, class V>
HWY_INLINE V GeluSlopeOf(D d, V x) {
  using T = hn::TFromD<D>;
  // s is 0 or 1 further out; the limit keeps 0 * infinity away.
  const V limit = hn::Set(d, sizeof(T) == 4 ? T{12} : T{32});
  x = LimitBelow(LimitAbove(x, limit), hn::Neg(limit));
  const V one = hn::Set(d, T{1});
  const V square = hn::Mul(x, x);
  const V a = hn::Set(d, static_cast<T>(kGeluSlope));
  const V u = hn::Mul(x, hn::MulAdd(square, hn::Set(d, static_cast<T>(kGeluSlope * kGeluCube)), a));
  const V du = hn::MulAdd(square, hn::Set(d, static_cast<T>(3 * kGeluSlope * kGeluCube)), a);
  const V e = ExpOfNegative(d, hn::Neg(hn::Abs(u)));
  const V inverse = hn::Div(one, hn::Add(one, e));
  const V s = hn::Mul(hn::IfThenElse(hn::Lt(u, hn::Zero(d)), e, one), inverse);
  const V spread = hn::Mul(hn::Mul(e, inverse), inverse);
  return hn::MulAdd(hn::Mul(x, du), spread, s);
}

// sin and cos of 2 pi u for u in [0, 1].
template <class D, class V>
HWY_INLINE void SinCosTurns(D d, V u, V* sin, V* cos) {
  static constexpr float kSin[] = {1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880};
  static constexpr float kCos[] = {1.0f, -1.0f / 2, 1.0f / 24, -1.0f / 720, 1.0f / 40320};
  const V quarters = hn::Round(hn::Mul(u, hn::Set(d, 4.0f)));
  const V r = hn::Mul(hn::NegMulAdd(quarters, hn::Set(d, 0.25f), u), hn::Set(d, 6.28318530718f));
  const V z = hn::Mul(r, r);
  const V s = hn::Mul(r, Horner(d, z, kSin));
  const V c = Horner(d, z, kCos);
  const auto is = [&](float quarter) { return hn::Eq(quarters, hn::Set(d, quarter)); };
  const auto odd = hn::Or(is(1.0f), is(3.0f));
  const V sin_size = hn::IfThenElse(odd, c, s);
  const V cos_size = hn::IfThenElse(odd, s, c);
  *sin = hn::IfThenElse(hn::Or(is(2.0f), is(3.0f)), hn::Neg(sin_size), sin_size);
  *cos = hn::IfThenElse(hn::Or(is(1.0f), is(2.0f)), hn::Neg(cos_size), cos_size);
}

// The first `count` < Lanes(d) elements, zeros after them; and their store.
template <class D, typename T>
HWY_INLINE VecOf<D> LoadFirst(D d, const T* p, size_t count) {
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
}
template <class D, class V, typename T>
HWY_INLINE void StoreFirst(D d, V v, T* p, size_t count) {
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif
