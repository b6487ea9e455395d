#include "tests/support/tiny_ops.h"

#include <bit>
#include <utility>
#include <vector>

#include "fabric/opset/grad_helpers.h"
#include "tests/support/seeded.h"

namespace weft::testing {
namespace {

using Metas = StatusOr<std::vector<TensorMeta>>;

Metas SameAsFirst(const InferArgs& a) {
  for (const TensorMeta& m : a.in) {
    if (!(m == a.in[0])) {
      return InvalidArgument("operands differ: ", ToString(a.in[0]), " and ", ToString(m));
    }
  }
  return std::vector<TensorMeta>{a.in[0]};
}

Shape ShapeAttr(const Attrs& attrs) {
  const std::vector<int64_t> dims = attrs.GetInts("shape");
  return Shape(dims.begin(), dims.end());
}

Metas ShapeFromAttr(const InferArgs& a) {
  const TensorMeta out{DType::kF32, ShapeAttr(a.attrs)};
  if (!a.in.empty() && a.in[0].elements() != 1 && a.in[0].elements() != out.elements()) {
    return InvalidArgument("cannot give ", ToString(a.in[0]), " the shape ", ToString(out.shape));
  }
  return std::vector<TensorMeta>{out};
}

Attrs ShapeOf(const Value& v) {
  return {{"shape", std::vector<int64_t>(v.shape().begin(), v.shape().end())}};
}

OpDef Def(std::string name, std::vector<std::string> inputs, GradFn grad,
          InferFn infer = SameAsFirst) {
  OpDef def;
  def.name = std::move(name);
  def.inputs = std::move(inputs);
  def.grad = std::move(grad);
  def.infer = std::move(infer);
  return def;
}

GradFn PassOn() {
  return [](const GradArgs& g) { return Values(g.in.size(), g.d[0]); };
}

void AddPointwise(OpSet& ops) {
  OpDef copy = Def("copy", {"x"}, PassOn());
  copy.strided_inputs = true;
  ops.Add(copy);
  ops.Add(Def("add", {"a", "b"}, PassOn()));
  ops.Add(Def("mul", {"a", "b"}, [](const GradArgs& g) -> Values {
    return {g.need[0] ? Mul(g.e, g.d[0], g.in[1]) : Value(),
            g.need[1] ? Mul(g.e, g.d[0], g.in[0]) : Value()};
  }));
  ops.Add(Def("neg", {"x"}, [](const GradArgs& g) -> Values { return {Neg(g.e, g.d[0])}; }));
  ops.Add(Def("recip", {"x"}, [](const GradArgs& g) -> Values {
    return {Neg(g.e, Mul(g.e, g.d[0], Mul(g.e, g.out[0], g.out[0])))};
  }));
  ops.Add(Def("square", {"x"}, [](const GradArgs& g) -> Values {
    return {g.e.Emit("square_grad", {g.in[0], g.d[0]})};
  }));
  OpDef square_grad = Def("square_grad", {"x", "dy"}, nullptr);
  square_grad.differentiable = false;
  ops.Add(square_grad);
  OpDef positive = Def("is_positive", {"x"}, nullptr);
  positive.differentiable = false;
  ops.Add(positive);
  OpDef cast = Def(
      "cast", {"x"},
      [](const GradArgs& g) -> Values { return {CastTo(g.e, g.d[0], g.in[0].dtype())}; },
      [](const InferArgs& a) -> Metas {
        return std::vector<TensorMeta>{{DTypeFromName(a.attrs.GetString("dtype")), a.in[0].shape}};
      });
  cast.attrs = {{"dtype", AttrType::kString, true, ""}};
  ops.Add(cast);
  OpDef split2 = Def("split2", {"x"}, [](const GradArgs& g) -> Values {
    if (!g.d[1].valid()) return {g.d[0]};
    const Value twice = Mul(g.e, g.d[1], Add(g.e, g.in[0], g.in[0]));
    return {g.d[0].valid() ? Add(g.e, g.d[0], twice) : twice};
  });
  split2.outputs = {"y", "z"};
  split2.infer = [](const InferArgs& a) -> Metas {
    return std::vector<TensorMeta>{a.in[0], a.in[0]};
  };
  ops.Add(split2);
}

void AddShapes(OpSet& ops) {
  const AttrDef shape{"shape", AttrType::kInts, true, ""};
  OpDef sum = Def(
      "sum", {"x"},
      [](const GradArgs& g) -> Values { return {g.e.Emit("spread", {g.d[0]}, ShapeOf(g.in[0]))}; },
      [](const InferArgs&) -> Metas {
        return std::vector<TensorMeta>{{DType::kF32, {}}};
      });
  ops.Add(sum);
  OpDef fill = Def("fill", {}, nullptr, ShapeFromAttr);
  fill.attrs = {
      shape, {"value", AttrType::kFloat, true, ""}, {"dtype", AttrType::kString, false, ""}};
  ops.Add(fill);
  OpDef draw = Def("draw", {}, nullptr, ShapeFromAttr);
  draw.attrs = {shape, {"key", AttrType::kInt, false, ""}};
  draw.random = true;
  ops.Add(draw);
  OpDef reshape = Def(
      "reshape", {"x"},
      [](const GradArgs& g) -> Values { return {Reshape(g.e, g.d[0], g.in[0].shape())}; },
      ShapeFromAttr);
  reshape.attrs = {shape};
  reshape.alias = Alias::kReshape;
  ops.Add(reshape);
  OpDef spread = Def(
      "spread", {"s"}, [](const GradArgs& g) -> Values { return {g.e.Emit("sum", {g.d[0]})}; },
      ShapeFromAttr);
  spread.attrs = {shape};
  spread.alias = Alias::kStrided;
  spread.view = [](const TensorMeta&, const Strides&, const TensorMeta& out, const Attrs&) {
    ViewWindow w;
    for (int i = 0; i < out.shape.rank(); ++i) w.strides.Append(0);
    return w;
  };
  ops.Add(spread);
}

void AddWindows(OpSet& ops) {
  OpDef transpose = Def(
      "transpose", {"x"},
      [](const GradArgs& g) -> Values { return {g.e.Emit("transpose", {g.d[0]})}; },
      [](const InferArgs& a) -> Metas {
        if (a.in[0].shape.rank() != 2) return InvalidArgument("wants a matrix");
        return std::vector<TensorMeta>{{DType::kF32, {a.in[0].shape[1], a.in[0].shape[0]}}};
      });
  transpose.alias = Alias::kStrided;
  transpose.view = [](const TensorMeta&, const Strides& s, const TensorMeta&, const Attrs&) {
    return ViewWindow{0, {s[1], s[0]}};
  };
  ops.Add(transpose);
  const auto rows = [](TensorMeta m, int64_t n) {
    m.shape.set_dim(0, n);
    return std::vector<TensorMeta>{m};
  };
  OpDef take = Def(
      "take", {"x"},
      [](const GradArgs& g) -> Values {
        return {g.e.Emit("place", {g.d[0]},
                         {{"begin", g.attrs.GetInt("begin")}, {"rows", g.in[0].shape()[0]}})};
      },
      [rows](const InferArgs& a) -> Metas {
        return rows(a.in[0], a.attrs.GetInt("end") - a.attrs.GetInt("begin"));
      });
  take.attrs = {{"begin", AttrType::kInt, true, ""}, {"end", AttrType::kInt, true, ""}};
  take.alias = Alias::kStrided;
  take.view = [](const TensorMeta&, const Strides& s, const TensorMeta&, const Attrs& attrs) {
    return ViewWindow{attrs.GetInt("begin") * s[0], s};
  };
  ops.Add(take);
  OpDef place = Def(
      "place", {"x"},
      [](const GradArgs& g) -> Values {
        const int64_t begin = g.attrs.GetInt("begin");
        return {
            g.e.Emit("take", {g.d[0]}, {{"begin", begin}, {"end", begin + g.in[0].shape()[0]}})};
      },
      [rows](const InferArgs& a) -> Metas { return rows(a.in[0], a.attrs.GetInt("rows")); });
  place.attrs = {{"begin", AttrType::kInt, true, ""}, {"rows", AttrType::kInt, true, ""}};
  ops.Add(place);
}

void AddOdd(OpSet& ops) {
  OpDef twice = Def("twice", {"x"}, nullptr);
  twice.expand = [](Emitter& e, const Values& in, const Attrs&) -> Values {
    return {Add(e, in[0], in[0])};
  };
  ops.Add(twice);
  OpDef cube = Def("cube", {"x"}, [](const GradArgs& g) -> Values {
    const Value d = Mul(g.e, g.d[0], Mul(g.e, g.in[0], g.in[0]));
    return {Add(g.e, d, Add(g.e, d, d))};
  });
  cube.expand = [](Emitter& e, const Values& in, const Attrs&) -> Values {
    return {Mul(e, Mul(e, in[0], in[0]), in[0])};
  };
  ops.Add(cube);
  OpDef add_into = Def("add_into", {"a", "b"}, PassOn());
  OpDef mul_into = Def("mul_into", {"a", "b"}, ops.Find("mul")->grad);
  OpDef descend = Def("descend", {"a", "b"}, nullptr);
  descend.differentiable = false;
  for (OpDef* op : {&add_into, &mul_into, &descend}) {
    op->alias = Alias::kInPlace;
    ops.Add(*op);
  }
  ops.Add(Def("no_rule", {"x"}, nullptr));
  ops.Add(Def("bad_rule", {"x"},
              [](const GradArgs& g) -> Values { return {g.e.Emit("sum", {g.d[0]})}; }));
  ops.Add(Def("broken", {"x"}, PassOn()));
  ops.Add(Def("no_kernel", {"x"}, PassOn()));
}

// ---- kernels

using LaunchFn = int (*)(const void*, const KernelArgs&);

// Elements of f32 and bf16 arrays; what is stored as bf16 is cut off.
float At(const ArrayRef& a, int64_t i) {
  if (a.dtype != DType::kBF16) return a.as<float>()[i];
  return std::bit_cast<float>(uint32_t{a.as<uint16_t>()[i]} << 16);
}
void Put(const ArrayRef& a, int64_t i, float value) {
  if (a.dtype != DType::kBF16) {
    a.as<float>()[i] = value;
  } else {
    a.as<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
}

template <float (*F)(float)>
int Unary(const void*, const KernelArgs& a) {
  for (int64_t i = 0; i < a.out[0].elements(); ++i) Put(a.out[0], i, F(At(a.in[0], i)));
  return 0;
}

template <float (*F)(float, float)>
int Binary(const void*, const KernelArgs& a) {
  for (int64_t i = 0; i < a.out[0].elements(); ++i) {
    Put(a.out[0], i, F(At(a.in[0], i), At(a.in[1], i)));
  }
  return 0;
}

float Same(float x) { return x; }
float Minus(float x) { return -x; }
float Recip(float x) { return 1 / x; }
float Square(float x) { return x * x; }
float Positive(float x) { return x > 0 ? 1 : 0; }
float Plus(float a, float b) { return a + b; }
float Less(float a, float b) { return a - b; }
float Times(float a, float b) { return a * b; }
float SquareGrad(float x, float d) { return 2 * x * d; }

int Copy(const void*, const KernelArgs& a) {
  ++Counters().copies;
  const ArrayRef& in = a.in[0];
  for (int64_t i = 0; i < in.elements(); ++i) {
    int64_t left = i, offset = 0;
    for (int k = in.shape.rank() - 1; k >= 0; --k) {
      offset += left % in.shape[k] * in.strides[k];
      left /= in.shape[k];
    }
    a.out[0].as<float>()[i] = in.as<float>()[offset];
  }
  return 0;
}

int SumAll(const void*, const KernelArgs& a) {
  float sum = 0;
  for (int64_t i = 0; i < a.in[0].elements(); ++i) sum += At(a.in[0], i);
  *a.out[0].as<float>() = sum;
  return 0;
}

int Split2(const void*, const KernelArgs& a) {
  for (int64_t i = 0; i < a.in[0].elements(); ++i) {
    const float x = a.in[0].as<float>()[i];
    a.out[0].as<float>()[i] = x;
    a.out[1].as<float>()[i] = x * x;
  }
  return 0;
}

// State of fill, draw and place: their attributes.
Bound KeepAttrs(const std::string&, const BindArgs& args) {
  return {std::make_shared<Attrs>(*args.attrs), 0, ""};
}

// Asks for scratch, to show that it is there and aligned.
Bound BindAdd(const std::string&, const BindArgs& args) {
  ++Counters().add_binds;
  if (args.out[0].elements() > 1 << 20) return {nullptr, 0, "too large for a tiny kernel"};
  return {nullptr, 64, ""};
}

int AddWithScratch(const void* state, const KernelArgs& a) {
  if (a.scratch == nullptr || reinterpret_cast<uintptr_t>(a.scratch) % 64 != 0) return 1;
  static_cast<float*>(a.scratch)[15] = 1;
  return Binary<Plus>(state, a);
}

int Fill(const void* state, const KernelArgs& a) {
  const auto value = static_cast<float>(static_cast<const Attrs*>(state)->GetFloat("value"));
  for (int64_t i = 0; i < a.out[0].elements(); ++i) a.out[0].as<float>()[i] = value;
  return 0;
}

int Draw(const void* state, const KernelArgs& a) {
  const auto key = static_cast<uint64_t>(static_cast<const Attrs*>(state)->GetInt("key"));
  const auto value = static_cast<float>(a.step.seed * 1000 + key);
  for (int64_t i = 0; i < a.out[0].elements(); ++i) a.out[0].as<float>()[i] = value;
  return 0;
}

int Place(const void* state, const KernelArgs& a) {
  const int64_t row = a.out[0].elements() / a.out[0].shape[0];
  const int64_t begin = static_cast<const Attrs*>(state)->GetInt("begin") * row;
  for (int64_t i = 0; i < a.out[0].elements(); ++i) {
    const bool inside = i >= begin && i < begin + a.in[0].elements();
    a.out[0].as<float>()[i] = inside ? a.in[0].as<float>()[i - begin] : 0;
  }
  return 0;
}

KernelTable BuildKernels() {
  KernelTable table;
  const auto add = [&table](const char* op, LaunchFn launch,
                            decltype(Kernel::bind) bind = nullptr) {
    table.Add(op, DeviceKind::kCpu, {nullptr, bind, launch, /*narrow=*/true});
  };
  add("copy", Copy);
  add("cast", Unary<Same>);
  add("add", AddWithScratch, BindAdd);
  add("mul", Binary<Times>);
  add("neg", Unary<Minus>);
  add("recip", Unary<Recip>);
  add("square", Unary<Square>);
  add("square_grad", Binary<SquareGrad>);
  add("is_positive", Unary<Positive>);
  add("split2", Split2);
  add("sum", SumAll);
  add("fill", Fill, KeepAttrs);
  add("draw", Draw, KeepAttrs);
  add("place", Place, KeepAttrs);
  add("add_into", Binary<Plus>);
  add("mul_into", Binary<Times>);
  add("descend", Binary<Less>);
  add("no_rule", Unary<Same>);
  add("bad_rule", Unary<Same>);
  add("broken", [](const void*, const KernelArgs&) { return 7; });
  return table;
}

}  // namespace

const OpSet& TinyOpSet() {
  static const OpSet& ops = *[] {
    auto* set = new OpSet;
    AddPointwise(*set);
    AddShapes(*set);
    AddWindows(*set);
    AddOdd(*set);
    return set;
  }();
  return ops;
}

const KernelTable& TinyKernels() {
  static const KernelTable& table = *new KernelTable(BuildKernels());
  return table;
}

TinyCounters& Counters() {
  static TinyCounters counters;
  return counters;
}

DispatchContext TinyContext() {
  DispatchContext context;
  context.ops = &TinyOpSet();
  context.kernels = &TinyKernels();
  context.allocator = TestAllocator().shared_from_this();
  return context;
}

std::unique_ptr<EagerEmitter> MakeTinyEmitter(uint64_t seed) {
  return std::make_unique<EagerEmitter>(TinyContext(), seed);
}

}  // namespace weft::testing
