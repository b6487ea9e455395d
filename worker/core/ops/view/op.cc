// Ops that rearrange: windows into the same bytes where strides can say it, and two that write.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fabric/opset/grad_helpers.h"
#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

int64_t NoFlops(const CostArgs&) { return 0; }

int Axis(const Shape& shape, int64_t axis) {
  return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
}

StatusOr<Metas> InferReshape(const InferArgs& a) {
  std::vector<int64_t> dims = a.attrs.GetInts("shape");
  const int64_t total = a.in[0].elements();
  const auto open = std::find(dims.begin(), dims.end(), -1);
  if (open != dims.end()) *open = 1;
  // Also refuses a second -1, and sizes whose product overflows.
  ASSIGN_OR_RETURN(Shape shape, CheckedShape(a.in[0].dtype, dims));
  const int64_t known = shape.elements();
  if (open != dims.end()) {
    if (known == 0 || total % known != 0) {
      return InvalidArgument("has ", total, " elements, no multiple of ", known);
    }
    shape.set_dim(static_cast<int>(open - dims.begin()), total / known);
  } else if (known != total) {
    return InvalidArgument("has ", total, " elements, the shape asks for ", known);
  }
  return Metas{{a.in[0].dtype, shape}};
}

OpDef ReshapeOp() {
  OpDef op{.name = "reshape",
           .doc = "the same elements in the same order in another shape",
           .inputs = {"x"}};
  op.attrs = {
      {"shape", AttrType::kInts, true, "the result's shape; one may be -1, whatever is left"}};
  op.infer = InferReshape;
  op.grad = [](const GradArgs& g) { return Values{Reshape(g.e, g.d[0], g.in[0].shape())}; };
  op.alias = Alias::kReshape;
  op.precision = Precision::kFollow;
  return op;
}

OpDef TransposeOp() {
  OpDef op{.name = "transpose", .doc = "swaps dimensions `a` and `b`", .inputs = {"x"}};
  op.attrs = {{"a", AttrType::kInt, true, "a dimension"},
              {"b", AttrType::kInt, true, "a dimension"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    Shape shape = a.in[0].shape;
    ASSIGN_OR_RETURN(const int first, CheckAxis(shape, a.attrs.GetInt("a")));
    ASSIGN_OR_RETURN(const int second, CheckAxis(shape, a.attrs.GetInt("b")));
    const int64_t size = shape.dim(first);
    shape.set_dim(first, shape.dim(second));
    shape.set_dim(second, size);
    return Metas{{a.in[0].dtype, shape}};
  };
  op.grad = [](const GradArgs& g) { return Values{g.e.Emit("transpose", {g.d[0]}, g.attrs)}; };
  op.alias = Alias::kStrided;
  op.view = [](const TensorMeta& in, const Strides& strides, const TensorMeta&,
               const Attrs& attrs) {
    const int first = Axis(in.shape, attrs.GetInt("a")), second = Axis(in.shape, attrs.GetInt("b"));
    ViewWindow window{0, strides};
    window.strides.set_dim(first, strides.dim(second));
    window.strides.set_dim(second, strides.dim(first));
    return window;
  };
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

OpDef SliceOp() {
  OpDef op{.name = "slice", .doc = "elements [begin, end) of dimension `axis`", .inputs = {"x"}};
  op.attrs = {{"axis", AttrType::kInt, true, "a dimension"},
              {"begin", AttrType::kInt, true, "first element"},
              {"end", AttrType::kInt, true, "one past the last element"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    Shape shape = a.in[0].shape;
    ASSIGN_OR_RETURN(const int axis, CheckAxis(shape, a.attrs.GetInt("axis")));
    const int64_t begin = a.attrs.GetInt("begin"), end = a.attrs.GetInt("end");
    if (begin < 0 || begin > end || end > shape.dim(axis)) {
      return InvalidArgument("[", begin, ", ", end, ") is not within dimension ", axis, " of size ",
                             shape.dim(axis));
    }
    shape.set_dim(axis, end - begin);
    return Metas{{a.in[0].dtype, shape}};
  };
  op.grad = [](const GradArgs& g) {
    const int axis = Axis(g.in[0].shape(), g.attrs.GetInt("axis"));
    return Values{g.e.Emit("pad", {g.d[0]},
                           {{"axis", int64_t{axis}},
                            {"begin", g.attrs.GetInt("begin")},
                            {"size", g.in[0].shape().dim(axis)}})};
  };
  op.alias = Alias::kStrided;
  op.view = [](const TensorMeta& in, const Strides& strides, const TensorMeta&,
               const Attrs& attrs) {
    const int axis = Axis(in.shape, attrs.GetInt("axis"));
    return ViewWindow{attrs.GetInt("begin") * strides.dim(axis), strides};
  };
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

OpDef ExpandOp() {
  OpDef op{.name = "expand",
           .doc = "stretches dimensions of size 1, and adds leading ones",
           .inputs = {"x"}};
  op.attrs = {{"shape", AttrType::kInts, true, "the result's shape"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    ASSIGN_OR_RETURN(const Shape shape, CheckedShape(a.in[0].dtype, a.attrs.GetInts("shape")));
    ASSIGN_OR_RETURN(const Shape both, BroadcastShapes(a.in[0].shape, shape));
    if (both != shape) return InvalidArgument("does not stretch to ", ToString(shape));
    return Metas{{a.in[0].dtype, shape}};
  };
  op.grad = [](const GradArgs& g) { return Values{SumTo(g.e, g.d[0], g.in[0].shape())}; };
  op.alias = Alias::kStrided;
  op.view = [](const TensorMeta& in, const Strides& strides, const TensorMeta& out, const Attrs&) {
    ViewWindow window;
    const int lead = out.shape.rank() - in.shape.rank();
    for (int i = 0; i < out.shape.rank(); ++i) {
      const bool stretched = i < lead || (in.shape.dim(i - lead) == 1 && out.shape.dim(i) != 1);
      window.strides.Append(stretched ? 0 : strides.dim(i - lead));
    }
    return window;
  };
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

OpDef PadOp() {
  OpDef op{
      .name = "pad", .doc = "zeros, but for x at `begin` of dimension `axis`", .inputs = {"x"}};
  op.attrs = {{"axis", AttrType::kInt, true, "a dimension"},
              {"begin", AttrType::kInt, true, "where x starts"},
              {"size", AttrType::kInt, true, "of the result's dimension"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    Shape shape = a.in[0].shape;
    ASSIGN_OR_RETURN(const int axis, CheckAxis(shape, a.attrs.GetInt("axis")));
    const int64_t begin = a.attrs.GetInt("begin"), size = a.attrs.GetInt("size");
    if (begin < 0 || size < shape.dim(axis) || begin > size - shape.dim(axis)) {
      return InvalidArgument("dimension ", axis, " of size ", shape.dim(axis), " at ", begin,
                             " does not fit in ", size);
    }
    shape.set_dim(axis, size);
    return Metas{{a.in[0].dtype, shape}};
  };
  op.grad = [](const GradArgs& g) {
    const int64_t begin = g.attrs.GetInt("begin"), axis = g.attrs.GetInt("axis");
    const int64_t end = begin + g.in[0].shape().dim(static_cast<int>(axis));
    return Values{g.e.Emit("slice", {g.d[0]}, {{"axis", axis}, {"begin", begin}, {"end", end}})};
  };
  op.flops = NoFlops;
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

OpDef ConcatOp() {
  OpDef op{.name = "concat", .doc = "operands one after the other along `axis`", .inputs = {"x"}};
  op.variadic = true;
  op.attrs = {{"axis", AttrType::kInt, true, "a dimension"}};
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    TensorMeta out = a.in[0];
    ASSIGN_OR_RETURN(const int axis, CheckAxis(out.shape, a.attrs.GetInt("axis")));
    out.shape.set_dim(axis, 0);
    for (const TensorMeta& meta : a.in) {
      Shape rest = meta.shape;
      if (rest.rank() == out.shape.rank()) rest.set_dim(axis, out.shape.dim(axis));
      if (meta.dtype != out.dtype || rest != out.shape) {
        return InvalidArgument("operands differ in more than dimension ", axis);
      }
      out.shape.set_dim(axis, out.shape.dim(axis) + meta.shape.dim(axis));
    }
    return Metas{out};
  };
  op.grad = [](const GradArgs& g) {
    Values grads(g.in.size());
    const int64_t axis = g.attrs.GetInt("axis");
    int64_t begin = 0;
    for (size_t i = 0; i < g.in.size(); ++i) {
      const int64_t end = begin + g.in[i].shape().dim(static_cast<int>(axis));
      if (g.need[i]) {
        grads[i] = g.e.Emit("slice", {g.d[0]}, {{"axis", axis}, {"begin", begin}, {"end", end}});
      }
      begin = end;
    }
    return grads;
  };
  op.flops = NoFlops;
  op.strided_inputs = true;
  op.precision = Precision::kFollow;
  return op;
}

}  // namespace

void AddViewOps(OpSet* set) {
  set->Add(ReshapeOp());
  set->Add(TransposeOp());
  set->Add(SliceOp());
  set->Add(ExpandOp());
  set->Add(PadOp());
  set->Add(ConcatOp());
}

}  // namespace weft
