// Elementwise kernels. Operands are walked in the result's order in blocks; a block is used in
// place where it is a run of memory and gathered otherwise, so one vector loop serves contiguous,
// broadcast and strided operands. The last vector of a block is partial, never scalar: an element's
// bits do not depend on where it lies.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/elementwise/cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants this order.
#include "hwy/highway.h"

#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/ops/elementwise/state.h"
#include "worker/core/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

constexpr int64_t kBlock = 1024;

// One function, as `F::Of(d, params, operands...)`.
#define WEFT_UNARY(Name, expression)                                        \
  struct Name {                                                             \
    static constexpr int kOperands = 1;                                     \
    template <class D, class V>                                             \
    static HWY_INLINE V Of(D d, const ElementwiseState& state, V x, V, V) { \
      (void)d, (void)state;                                                 \
      return expression;                                                    \
    }                                                                       \
  };
#define WEFT_BINARY(Name, expression)                                         \
  struct Name {                                                               \
    static constexpr int kOperands = 2;                                       \
    template <class D, class V>                                               \
    static HWY_INLINE V Of(D d, const ElementwiseState& state, V a, V b, V) { \
      (void)d, (void)state;                                                   \
      return expression;                                                      \
    }                                                                         \
  };

template <class D>
HWY_INLINE VecOf<D> Constant(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

WEFT_BINARY(AddF, hn::Add(a, b))
WEFT_BINARY(SubF, hn::Sub(a, b))
WEFT_BINARY(MulF, hn::Mul(a, b))
WEFT_BINARY(DivF, hn::Div(a, b))
WEFT_BINARY(MaximumF, MaxKeepNan(a, b))
WEFT_BINARY(GreaterF, hn::IfThenElseZero(hn::Gt(a, b), Constant(d, 1)))
WEFT_BINARY(GeluGradF, hn::Mul(b, GeluSlopeOf(d, a)))
WEFT_UNARY(NegF, hn::Neg(x))
WEFT_UNARY(ExpF, ExpOf(d, x))
WEFT_UNARY(LogF, LogOf(d, x))
WEFT_UNARY(SqrtF, hn::Sqrt(x))
WEFT_UNARY(RsqrtF, hn::Div(Constant(d, 1), hn::Sqrt(x)))
WEFT_UNARY(TanhF, TanhOf(d, x))
WEFT_UNARY(SigmoidF, SigmoidOf(d, x))
WEFT_UNARY(ReluF, LimitBelow(x, hn::Zero(d)))
WEFT_UNARY(SquareF, hn::Mul(x, x))
WEFT_UNARY(GeluF, GeluOf(d, x))
WEFT_UNARY(ScaleF, hn::Mul(x, Constant(d, state.first)))
WEFT_UNARY(ShiftF, hn::Add(x, Constant(d, state.first)))
WEFT_UNARY(ClampF, LimitAbove(LimitBelow(x, Constant(d, state.first)), Constant(d, state.second)))

struct WhereF {
  static constexpr int kOperands = 3;
  template <class D, class V>
  static HWY_INLINE V Of(D d, const ElementwiseState&, V cond, V a, V b) {
    return hn::IfThenElse(hn::Eq(cond, hn::Zero(d)), b, a);
  }
};
#undef WEFT_UNARY
#undef WEFT_BINARY

template <class F, typename T>
void Apply(const ElementwiseState& state, const T* const (&in)[kMaxWalked], T* HWY_RESTRICT out,
           size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto operand = [&](int i, size_t at) {
    return i < F::kOperands ? hn::LoadU(d, in[i] + at) : hn::Zero(d);
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(F::Of(d, state, operand(0, i), operand(1, i), operand(2, i)), d, out + i);
  }
  if (i == count) return;
  const auto partial = [&](int k) {
    return k < F::kOperands ? LoadFirst(d, in[k] + i, count - i) : hn::Zero(d);
  };
  StoreFirst(d, F::Of(d, state, partial(0), partial(1), partial(2)), out + i, count - i);
}

template <class F, typename T>
void Run(const ElementwiseState& state, const KernelArgs& args) {
  const Walk& walk = state.walk;
  T* const out = args.out[0].as<T>();
  args.tiles->For(CeilDiv(walk.elements, kTileElements), [&](int64_t tile, int) {
    int64_t begin = tile * kTileElements;
    const int64_t end = std::min(begin + kTileElements, walk.elements);
    const T* in[kMaxWalked] = {};
    if (walk.linear()) {
      for (int i = 0; i < F::kOperands; ++i) in[i] = args.in[i].as<T>() + begin;
      Apply<F>(state, in, out + begin, end - begin);
      return;
    }
    HWY_ALIGN T buffer[F::kOperands][kBlock];
    while (begin < end) {
      const int64_t count = BlockLength(walk, begin, end, kBlock);
      for (int i = 0; i < F::kOperands; ++i) {
        in[i] = WalkRun(walk, i, args.in[i].as<T>(), begin, count, buffer[i]);
      }
      Apply<F>(state, in, out + begin, count);
      begin += count;
    }
  });
}

template <class F>
void RunAs(const ElementwiseState& state, const KernelArgs& args) {
  if (state.dtype == DType::kF64) {
    Run<F, double>(state, args);
  } else {
    Run<F, float>(state, args);
  }
}

void LaunchElementwise(const ElementwiseState& state, const KernelArgs& args) {
  switch (state.function) {
#define WEFT_CASE(name)              \
  case ElementwiseFunction::k##name: \
    return RunAs<name##F>(state, args);
    WEFT_CASE(Add)
    WEFT_CASE(Sub)
    WEFT_CASE(Mul)
    WEFT_CASE(Div)
    WEFT_CASE(Maximum)
    WEFT_CASE(Greater)
    WEFT_CASE(Where)
    WEFT_CASE(Neg)
    WEFT_CASE(Exp)
    WEFT_CASE(Log)
    WEFT_CASE(Sqrt)
    WEFT_CASE(Rsqrt)
    WEFT_CASE(Tanh)
    WEFT_CASE(Sigmoid)
    WEFT_CASE(Relu)
    WEFT_CASE(Square)
    WEFT_CASE(Gelu)
    WEFT_CASE(GeluGrad)
    WEFT_CASE(Scale)
    WEFT_CASE(Shift)
    WEFT_CASE(Clamp)
#undef WEFT_CASE
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/elementwise/copies.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

HWY_EXPORT(LaunchElementwise);

int Launch(const void* state, const KernelArgs& args) {
  HWY_DYNAMIC_DISPATCH(LaunchElementwise)(*static_cast<const ElementwiseState*>(state), args);
  return 0;
}

// `first` and `second` name the attributes that the function takes, if any.
struct Row {
  const char* op;
  ElementwiseFunction function;
  const char* first = nullptr;
  const char* second = nullptr;
};
using enum ElementwiseFunction;
constexpr Row kRows[] = {
    {"add", kAdd},
    {"sub", kSub},
    {"mul", kMul},
    {"div", kDiv},
    {"maximum", kMaximum},
    {"greater", kGreater},
    {"where", kWhere},
    {"neg", kNeg},
    {"exp", kExp},
    {"log", kLog},
    {"sqrt", kSqrt},
    {"rsqrt", kRsqrt},
    {"tanh", kTanh},
    {"sigmoid", kSigmoid},
    {"relu", kRelu},
    {"square", kSquare},
    {"gelu", kGelu},
    {"gelu_grad", kGeluGrad},
    {"scale", kScale, "factor"},
    {"shift", kShift, "amount"},
    {"clamp", kClamp, "min", "max"},
    {"scale_by", kMul},
};

template <int kRow>
Bound BindRow(const std::string&, const BindArgs& args) {
  const Row& row = kRows[kRow];
  const DType dtype = args.out[0].dtype;
  if (dtype != DType::kF32 && dtype != DType::kF64) return {.error = "computes in f32 or f64 only"};
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  auto state = std::make_shared<ElementwiseState>();
  state->function = row.function;
  state->dtype = dtype;
  state->walk = MakeWalk(args.out[0].shape, args.in, args.in_count);
  if (row.first != nullptr) state->first = args.attrs->GetFloat(row.first);
  if (row.second != nullptr) state->second = args.attrs->GetFloat(row.second);
  return {.state = std::move(state)};
}

template <int kRow>
void RegisterFrom(KernelTable* table) {
  if constexpr (kRow < std::size(kRows)) {
    table->Add(kRows[kRow].op, DeviceKind::kCpu, {nullptr, BindRow<kRow>, Launch});
    RegisterFrom<kRow + 1>(table);
  }
}

}  // namespace

void RegisterElementwiseCpu(KernelTable* table) {
  RegisterFrom<0>(table);
  RegisterCopiesCpu(table);
}

}  // namespace weft
#endif  // HWY_ONCE
