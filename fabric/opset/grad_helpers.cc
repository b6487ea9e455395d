#include "fabric/opset/grad_helpers.h"

#include <algorithm>
#include <string>
#include <vector>

namespace weft {

Value SumTo(Emitter& e, const Value& g, const Shape& like) {
  if (!g.valid() || g.shape() == like) return g;
  const int lead = g.shape().rank() - like.rank();
  std::vector<int64_t> axes;
  if (Shape(g.shape().begin() + lead, g.shape().end()) == like) {
    for (int i = 0; i < lead; ++i) axes.push_back(i);
    return e.Emit("sum", {g}, {{"axes", axes}});
  }
  for (int i = 0; i < g.shape().rank(); ++i) {
    const bool broadcast = i < lead || (like.dim(i - lead) == 1 && g.shape().dim(i) != 1);
    if (broadcast) axes.push_back(i);
  }
  Value sum = axes.empty() ? g : e.Emit("sum", {g}, {{"axes", axes}, {"keep", true}});
  return Reshape(e, sum, like);
}

Value CastTo(Emitter& e, const Value& a, DType dtype) {
  if (!a.valid() || a.dtype() == dtype) return a;
  return e.Emit("cast", {a}, {{"dtype", std::string(NameOf(dtype))}});
}

namespace {

Value Binary(Emitter& e, const char* op, const Value& a, const Value& b) {
  const bool mixed = a.valid() && b.valid() && a.dtype() != b.dtype();
  const auto widened = [&](const Value& v) {
    return mixed && v.dtype() == DType::kBF16 ? CastTo(e, v, DType::kF32) : v;
  };
  return e.Emit(op, {widened(a), widened(b)});
}

}  // namespace

Value Add(Emitter& e, const Value& a, const Value& b) { return Binary(e, "add", a, b); }
Value Sub(Emitter& e, const Value& a, const Value& b) { return Binary(e, "sub", a, b); }
Value Mul(Emitter& e, const Value& a, const Value& b) { return Binary(e, "mul", a, b); }
Value Div(Emitter& e, const Value& a, const Value& b) { return Binary(e, "div", a, b); }
Value Neg(Emitter& e, const Value& a) { return e.Emit("neg", {a}); }
Value Scale(Emitter& e, const Value& a, double factor) {
  return e.Emit("scale", {a}, {{"factor", factor}});
}

Value Reshape(Emitter& e, const Value& a, const Shape& shape) {
  if (!a.valid() || a.shape() == shape) return a;
  return e.Emit("reshape", {a}, {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}});
}

Value Transpose(Emitter& e, const Value& a, int axis_a, int axis_b) {
  return e.Emit("transpose", {a}, {{"a", int64_t{axis_a}}, {"b", int64_t{axis_b}}});
}

Value MatMul(Emitter& e, const Value& a, const Value& b, bool transpose_a, bool transpose_b) {
  return e.Emit("matmul", {a, b}, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
}

StatusOr<Shape> BroadcastShapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t da = ia < 0 ? 1 : a.dim(ia), db = ib < 0 ? 1 : b.dim(ib);
    if (da != db && da != 1 && db != 1) {
      return InvalidArgument("shapes ", ToString(a), " and ", ToString(b),
                             " do not broadcast: ", da, " against ", db);
    }
    out.Append(da == 1 ? db : da);
  }
  return out;
}

}  // namespace weft
