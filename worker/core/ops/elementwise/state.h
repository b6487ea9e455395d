// What binding an elementwise kernel decides.
#pragma once

#include "fabric/base/dtype.h"
#include "worker/core/ops/strided.h"

namespace weft {

enum class ElementwiseFunction {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kGreater,
  kWhere,
  kNeg,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kTanh,
  kSigmoid,
  kRelu,
  kSquare,
  kGelu,
  kGeluGrad,
  kScale,
  kShift,
  kClamp,
};

struct ElementwiseState {
  ElementwiseFunction function = ElementwiseFunction::kAdd;
  DType dtype = DType::kF32;
  Walk walk;
  double first = 0;  // constants of scale, shift and clamp
  double second = 0;
};

}  // namespace weft
