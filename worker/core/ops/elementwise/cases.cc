#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

using Unary = std::function<double(double, const Attrs&)>;
using Binary = std::function<double(double, double)>;

// The element of an operand that broadcasting pairs with element `i` of `out`.
int64_t Paired(const Shape& out, const Shape& operand, int64_t i) {
  int64_t index = 0, step = 1;
  for (int axis = out.rank() - 1; axis >= 0; --axis) {
    const int64_t at = i % out.dim(axis);
    i /= out.dim(axis);
    const int own = axis - (out.rank() - operand.rank());
    if (own < 0) continue;
    if (operand.dim(own) != 1) index += at * step;
    step *= operand.dim(own);
  }
  return index;
}

// One result whose elements are f(index of the element within each operand).
RefFn PerElement(std::function<double(const RefArgs&, const std::vector<int64_t>&)> f) {
  return [f = std::move(f)](const RefArgs& r) {
    const Shape& shape = r.out_metas[0].shape;
    Doubles y(shape.elements());
    std::vector<int64_t> at(r.in.size());
    for (int64_t i = 0; i < shape.elements(); ++i) {
      for (size_t k = 0; k < at.size(); ++k) at[k] = Paired(shape, r.metas[k].shape, i);
      y[i] = f(r, at);
    }
    return std::vector<Doubles>{y};
  };
}

RefFn UnaryRef(Unary f) {
  return PerElement([f = std::move(f)](const RefArgs& r, const std::vector<int64_t>& at) {
    return f(r.in[0][at[0]], r.attrs);
  });
}

RefFn BinaryRef(Binary f) {
  return PerElement([f = std::move(f)](const RefArgs& r, const std::vector<int64_t>& at) {
    return f(r.in[0][at[0]], r.in[1][at[1]]);
  });
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double GeluArgument(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
double Gelu(double x) { return x * Sigmoid(2 * GeluArgument(x)); }
double GeluSlope(double x) {
  const double s = Sigmoid(2 * GeluArgument(x));
  return s + x * s * (1 - s) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

struct UnaryRow {
  const char* op;
  Unary f;
  double low = -3;
  double high = 3;
  Attrs attrs = {};
};

const std::vector<UnaryRow>& UnaryRows() {
  static const auto* const rows = new std::vector<UnaryRow>{
      {"neg", [](double x, const Attrs&) { return -x; }},
      {"exp", [](double x, const Attrs&) { return std::exp(x); }},
      {"log", [](double x, const Attrs&) { return std::log(x); }, 0.01, 20},
      {"sqrt", [](double x, const Attrs&) { return std::sqrt(x); }, 0.1, 20},
      {"rsqrt", [](double x, const Attrs&) { return 1 / std::sqrt(x); }, 0.1, 20},
      {"tanh", [](double x, const Attrs&) { return std::tanh(x); }},
      {"sigmoid", [](double x, const Attrs&) { return Sigmoid(x); }, -9, 9},
      {"relu", [](double x, const Attrs&) { return std::max(x, 0.0); }},
      {"square", [](double x, const Attrs&) { return x * x; }},
      {"gelu", [](double x, const Attrs&) { return Gelu(x); }, -6, 6},
      {"scale",
       [](double x, const Attrs& a) { return x * a.GetFloat("factor"); },
       -3,
       3,
       {{"factor", 0.375}}},
      {"shift",
       [](double x, const Attrs& a) { return x + a.GetFloat("amount"); },
       -3,
       3,
       {{"amount", -1.25}}},
      {"clamp",
       [](double x, const Attrs& a) {
         return std::min(std::max(x, a.GetFloat("min")), a.GetFloat("max"));
       },
       -3,
       3,
       {{"min", -1.5}, {"max", 0.5}}},
  };
  return *rows;
}

struct BinaryRow {
  const char* op;
  Binary f;
  double low = -2;  // of b
  double high = 2;
};

const std::vector<BinaryRow>& BinaryRows() {
  static const auto* const rows = new std::vector<BinaryRow>{
      {"add", [](double a, double b) { return a + b; }},
      {"sub", [](double a, double b) { return a - b; }},
      {"mul", [](double a, double b) { return a * b; }},
      {"div", [](double a, double b) { return a / b; }, 0.5, 2},
      {"maximum", [](double a, double b) { return std::max(a, b); }},
      {"greater", [](double a, double b) { return a > b ? 1.0 : 0.0; }},
  };
  return *rows;
}

// Named pairs of shapes that broadcast.
struct Pair {
  const char* name;
  Shape a, b;
};
const Pair kPairs[] = {
    {"same", {3, 37}, {3, 37}},
    {"tiles", {3, 11000}, {3, 11000}},
    {"scalar", {5, 7}, {}},
    {"row", {6, 150}, {150}},
    {"short_row", {90, 5}, {5}},
    {"column", {6, 150}, {6, 1}},
    {"both", {4, 1, 33}, {3, 1}},
    {"middle", {4, 3, 20}, {4, 1, 20}},
    {"empty", {0, 4}, {0, 4}},
    {"empty_row", {0, 4}, {4}},
    {"a_scalar", {}, {2, 3}},
    {"points", {}, {}},
    // Whole 16 bytes of every dtype along the innermost dimension.
    {"wide_row", {5, 3, 160}, {160}},
    {"wide_column", {6, 160}, {6, 1}},
    {"wide_middle", {3, 5, 64}, {3, 1, 64}},
    {"wide_scalar", {2, 4099}, {}},
};

void AddUnary(OpCases* cases) {
  const std::pair<const char*, Shape> shapes[] = {{"matrix", {3, 37}},
                                                  {"tiles", {2, 20001}},
                                                  {"scalar", {}},
                                                  {"empty", {0, 5}},
                                                  {"cube", {4, 5, 6}}};
  for (const UnaryRow& row : UnaryRows()) {
    for (const auto& [name, shape] : shapes) {
      OpCase c{row.op, name, {F32(shape, row.low, row.high)}, row.attrs};
      c.reference = UnaryRef(row.f);
      cases->push_back(std::move(c));
    }
  }
}

void AddBinary(OpCases* cases) {
  for (const BinaryRow& row : BinaryRows()) {
    for (const Pair& pair : kPairs) {
      OpCase c{row.op, pair.name, {F32(pair.a, -2, 2), F32(pair.b, row.low, row.high)}};
      c.reference = BinaryRef(row.f);
      cases->push_back(std::move(c));
    }
  }
  // Equal operands: the gradient goes to the first, which differences do not show.
  OpCase ties{"maximum", "ties", {F32({4}), F32({4})}};
  ties.inputs[0].values = ties.inputs[1].values = {1, -2, 0, 3};
  ties.smooth = false;
  ties.reference = BinaryRef([](double a, double b) { return std::max(a, b); });
  cases->push_back(ties);
}

void AddWhere(OpCases* cases) {
  for (const Pair& pair : kPairs) {
    OpCase c{"where", pair.name, {F32(pair.a), F32(pair.a), F32(pair.b)}};
    c.inputs[0].low = c.inputs[0].high = 0;
    const int64_t count = pair.a.elements();
    for (int64_t i = 0; i < count; ++i) c.inputs[0].values.push_back(i % 3 == 1 ? 0 : i % 3 - 1);
    c.inputs[0].check_grad = false;
    c.reference = PerElement([](const RefArgs& r, const std::vector<int64_t>& at) {
      return r.in[0][at[0]] != 0 ? r.in[1][at[1]] : r.in[2][at[2]];
    });
    cases->push_back(std::move(c));
  }
}

void AddTheRest(OpCases* cases) {
  for (const Shape& shape : {Shape{3, 37}, Shape{2, 20001}, Shape{0, 3}}) {
    const std::string name = shape.elements() == 0 ? "empty" : shape[0] == 2 ? "tiles" : "matrix";
    OpCase grad{"gelu_grad", name, {F32(shape, -6, 6), F32(shape)}};
    grad.reference = BinaryRef([](double x, double dy) { return dy * GeluSlope(x); });
    cases->push_back(grad);

    OpCase scale_by{"scale_by", name, {F32(shape), F32({}, 0.5, 2)}};
    scale_by.reference = BinaryRef([](double x, double s) { return x * s; });
    cases->push_back(scale_by);
  }
}

// Copies and conversions, exact for all dtypes. Whole numbers below 256 are exact in each.
void AddCopies(OpCases* cases) {
  const RefFn same = UnaryRef([](double x, const Attrs&) { return x; });
  for (const DTypeRow& from : kDTypes) {
    if (from.dtype == DType::kInvalid) continue;
    OpInput whole{{from.dtype, {3, 5, 7}}, 0, 100};
    for (int i = 0; i < 105; ++i) whole.values.push_back(i);
    whole.check_grad = from.dtype == DType::kF32;
    OpCase copy{"copy", from.name, {whole}};
    copy.relative = copy.absolute = 0;
    copy.reference = same;
    cases->push_back(copy);
    for (const DTypeRow& to : kDTypes) {
      if (to.dtype == DType::kInvalid) continue;
      OpCase cast{"cast", std::string(from.name) + "_to_" + to.name, {whole}, {{"dtype", to.name}}};
      cast.inputs[0].check_grad = false;
      cast.relative = cast.absolute = 0;
      cast.reference = same;
      cases->push_back(cast);
    }
    OpCase fill{"fill",
                from.name,
                {},
                {{"shape", std::vector<int64_t>{3, 7}}, {"value", 6.0}, {"dtype", from.name}}};
    fill.relative = fill.absolute = 0;
    fill.reference = [](const RefArgs& r) {
      return std::vector<Doubles>{Doubles(r.out_metas[0].elements(), r.attrs.GetFloat("value"))};
    };
    cases->push_back(fill);
  }
  OpCase tiles{"copy", "tiles", {F32({3, 11000})}};
  tiles.reference = same;
  cases->push_back(tiles);
}

// Rounding and limits of conversions.
void AddCasts(OpCases* cases) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto add = [cases](const char* name, DType from, const char* to, Doubles in, Doubles out) {
    OpCase c{"cast",
             name,
             {{{from, {static_cast<int64_t>(in.size())}}, 0, 0, in, false}},
             {{"dtype", to}}};
    c.relative = c.absolute = 0;
    c.smooth = false;
    c.reference = [out](const RefArgs&) { return std::vector<Doubles>{out}; };
    cases->push_back(std::move(c));
  };
  add("saturates", DType::kF32, "i32", {-1.9, 1.9, 3e9, -3e9, NAN, kInfinity},
      {-1, 1, 2147483647, -2147483648.0, 0, 2147483647});
  add("saturates_u8", DType::kF64, "u8", {-1, 300, 254.99, NAN}, {0, 255, 254, 0});
  add("narrows", DType::kI64, "u8", {-5, 256, 17}, {0, 255, 17});
  // BF16 has 8 bits: 1 + 2^-8 is a tie, which goes to even; a little more goes up.
  add("ties_to_even", DType::kF32, "bf16", {1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-8 + 0x1p-23},
      {1, 1 + 0x1p-6, 1 + 0x1p-7});
  add("rounds_once", DType::kF64, "bf16", {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40},
      {1 + 0x1p-7, 1});
  add("keeps_nan", DType::kF32, "bf16", {NAN, kInfinity, -kInfinity}, {NAN, kInfinity, -kInfinity});
}

// What a NaN or an infinity does.
void AddSpecials(OpCases* cases) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Doubles odd = {NAN, kInfinity, -kInfinity, 0, -0.0, 1e-42, 3e38};
  const auto unary = [&](const char* op, Doubles out, Attrs attrs = {}) {
    OpCase c{op, "specials", {F32({7})}, std::move(attrs)};
    c.inputs[0].values = odd;
    c.smooth = false;
    c.absolute = 0;
    c.relative = 1e-6;
    c.reference = [out](const RefArgs&) { return std::vector<Doubles>{out}; };
    cases->push_back(std::move(c));
  };
  // The tiny one as FP32 holds it, and its logarithm.
  const double tiny = 1e-42f;
  unary("exp", {NAN, kInfinity, 0, 1, 1, 1, kInfinity});
  unary("log", {NAN, kInfinity, NAN, -kInfinity, -kInfinity, std::log(tiny), std::log(3e38f)});
  unary("tanh", {NAN, 1, -1, 0, 0, tiny, 1});
  unary("sigmoid", {NAN, 1, 0, 0.5, 0.5, 0.5, 1});
  unary("relu", {NAN, kInfinity, 0, 0, 0, tiny, 3e38f});
  unary("clamp", {NAN, 2, -1, 0, 0, tiny, 2}, {{"min", -1.0}, {"max", 2.0}});
  for (const bool first : {true, false}) {
    OpCase c{"maximum", first ? "nan_first" : "nan_second", {F32({2}), F32({2})}};
    c.inputs[first ? 0 : 1].values = {NAN, 1};
    c.inputs[first ? 1 : 0].values = {5, kInfinity};
    c.smooth = false;
    c.reference = [](const RefArgs&) { return std::vector<Doubles>{{NAN, kInfinity}}; };
    cases->push_back(std::move(c));
  }
}

}  // namespace

OpCases ElementwiseCases() {
  OpCases cases;
  AddUnary(&cases);
  AddBinary(&cases);
  AddWhere(&cases);
  AddTheRest(&cases);
  AddCopies(&cases);
  AddCasts(&cases);
  AddSpecials(&cases);
  return cases;
}

}  // namespace weft::testing
