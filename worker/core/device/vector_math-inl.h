// Functions of float vectors for kernels, compiled once for each instruction set. Chains of fused
// multiply-adds in a fixed order: a lane's bits do not depend on the vector's width.
#include "hwy/highway.h"

#if defined(WEFT_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_VECTOR_MATH_INL_H_
#undef WEFT_VECTOR_MATH_INL_H_
#else
#define WEFT_VECTOR_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

// e^x to 1.2 units in the last place; 0 below -87.3, 1.6e38 above 88; NaN stays.
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V FastExp(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -87.3f);
  const auto underflows = hn::Lt(x, lowest);
  // The second operand survives where one is NaN.
  x = hn::Max(lowest, hn::Min(hn::Set(d, 88.0f), x));
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);  // minimax on |r| <= ln(2) / 2
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenZeroElse(underflows, hn::Mul(p, hn::BitCast(d, exponent)));
}

// x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of GELU (arXiv 1606.08415).
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V FastGelu(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, -2 * 0.7978845608f * 0.044715f),
                             hn::Set(d, -2 * 0.7978845608f));
  const V e = FastExp(d, hn::Mul(x, cubic));
  return hn::Div(x, hn::Add(e, hn::Set(d, 1.0f)));
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // WEFT_VECTOR_MATH_INL_H_
