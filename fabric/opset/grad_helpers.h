// Words that gradient rules and models are written with.
#pragma once

#include "fabric/opset/emitter.h"

namespace weft {

// Sums `g` over the dimensions along which `like` was broadcast, so that the result has its shape.
Value SumTo(Emitter& e, const Value& g, const Shape& like);

// `a` itself where it has that dtype.
Value CastTo(Emitter& e, const Value& a, DType dtype);

// Where one operand is f32 and the other bf16, in f32: sums of bf16 values are f32.
Value Add(Emitter& e, const Value& a, const Value& b);
Value Sub(Emitter& e, const Value& a, const Value& b);
Value Mul(Emitter& e, const Value& a, const Value& b);
Value Div(Emitter& e, const Value& a, const Value& b);
Value Neg(Emitter& e, const Value& a);
Value Scale(Emitter& e, const Value& a, double factor);
Value Reshape(Emitter& e, const Value& a, const Shape& shape);
// Swaps two dimensions (a view).
Value Transpose(Emitter& e, const Value& a, int axis_a, int axis_b);
// a @ b over the last two dimensions, either one transposed first.
Value MatMul(Emitter& e, const Value& a, const Value& b, bool transpose_a = false,
             bool transpose_b = false);

// The shape both operands broadcast to (NumPy's rule), or InvalidArgument naming both.
StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b);

}  // namespace weft
