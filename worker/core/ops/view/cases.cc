#include <functional>
#include <utility>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

using Index = std::vector<int64_t>;

Index Unravel(const Shape& shape, int64_t i) {
  Index index(shape.rank());
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[axis] = i % shape.dim(axis);
    i /= shape.dim(axis);
  }
  return index;
}

int64_t Ravel(const Shape& shape, const Index& index) {
  int64_t i = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) i = i * shape.dim(axis) + index[axis];
  return i;
}

size_t AxisOf(const RefArgs& r, const char* name) {
  const int64_t axis = r.attrs.GetInt(name);
  return static_cast<size_t>(axis < 0 ? axis + r.metas[0].shape.rank() : axis);
}

// y at an index is input 0 at the index that `from` makes of it, or zero where that is empty.
RefFn Moved(std::function<Index(const RefArgs&, Index)> from) {
  return [from = std::move(from)](const RefArgs& r) {
    const Shape& shape = r.out_metas[0].shape;
    Doubles y(shape.elements());
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const Index source = from(r, Unravel(shape, i));
      if (!source.empty()) y[i] = r.in[0][Ravel(r.metas[0].shape, source)];
    }
    return std::vector<Doubles>{y};
  };
}

void Add(OpCases* cases, const char* op, const char* name, std::vector<OpInput> inputs, Attrs attrs,
         RefFn reference) {
  OpCase c{op, name, std::move(inputs), std::move(attrs)};
  c.relative = c.absolute = 0;
  c.reference = std::move(reference);
  cases->push_back(std::move(c));
}

void AddWindows(OpCases* cases) {
  const RefFn same = [](const RefArgs& r) { return std::vector<Doubles>{r.in[0]}; };
  Add(cases, "reshape", "merge", {F32({3, 4, 5})}, {{"shape", Index{12, 5}}}, same);
  Add(cases, "reshape", "rest", {F32({3, 4, 5})}, {{"shape", Index{2, -1}}}, same);
  Add(cases, "reshape", "scalar", {F32({1, 1})}, {{"shape", Index{}}}, same);
  Add(cases, "reshape", "empty", {F32({0, 3})}, {{"shape", Index{3, 0}}}, same);

  const RefFn swap = Moved([](const RefArgs& r, Index i) {
    std::swap(i[AxisOf(r, "a")], i[AxisOf(r, "b")]);
    return i;
  });
  const Attrs last_two = {{"a", int64_t{-1}}, {"b", int64_t{-2}}};
  Add(cases, "transpose", "matrix", {F32({3, 5})}, last_two, swap);
  Add(cases, "transpose", "apart", {F32({2, 3, 4, 5})}, {{"a", int64_t{0}}, {"b", int64_t{2}}},
      swap);
  Add(cases, "transpose", "same", {F32({2, 3})}, {{"a", int64_t{1}}, {"b", int64_t{1}}}, swap);

  const RefFn cut = Moved([](const RefArgs& r, Index i) {
    i[AxisOf(r, "axis")] += r.attrs.GetInt("begin");
    return i;
  });
  const auto slice = [](int64_t axis, int64_t begin, int64_t end) {
    return Attrs{{"axis", axis}, {"begin", begin}, {"end", end}};
  };
  Add(cases, "slice", "rows", {F32({6, 5})}, slice(0, 2, 5), cut);
  Add(cases, "slice", "columns", {F32({3, 4, 9})}, slice(-1, 1, 9), cut);
  Add(cases, "slice", "nothing", {F32({3, 4})}, slice(1, 2, 2), cut);

  const RefFn stretch = Moved([](const RefArgs& r, Index i) {
    const Shape& shape = r.metas[0].shape;
    i.erase(i.begin(), i.end() - shape.rank());
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape.dim(axis) == 1) i[axis] = 0;
    }
    return i;
  });
  Add(cases, "expand", "column", {F32({3, 1})}, {{"shape", Index{3, 4}}}, stretch);
  Add(cases, "expand", "leading", {F32({3})}, {{"shape", Index{2, 4, 3}}}, stretch);
  RefFn all = [](const RefArgs& r) {
    return std::vector<Doubles>{Doubles(r.out_metas[0].elements(), r.in[0][0])};
  };
  Add(cases, "expand", "scalar", {F32({})}, {{"shape", Index{2, 3}}}, all);
}

RefFn Joined() {
  return [](const RefArgs& r) {
    const Shape& shape = r.out_metas[0].shape;
    const size_t axis = AxisOf(r, "axis");
    Doubles y(shape.elements());
    int64_t begin = 0;
    for (size_t k = 0; k < r.in.size(); ++k) {
      for (int64_t i = 0; i < r.metas[k].elements(); ++i) {
        Index at = Unravel(r.metas[k].shape, i);
        at[axis] += begin;
        y[Ravel(shape, at)] = r.in[k][i];
      }
      begin += r.metas[k].shape.dim(static_cast<int>(axis));
    }
    return std::vector<Doubles>{y};
  };
}

void AddWrites(OpCases* cases) {
  const RefFn within = Moved([](const RefArgs& r, Index i) {
    const size_t axis = AxisOf(r, "axis");
    i[axis] -= r.attrs.GetInt("begin");
    if (i[axis] < 0 || i[axis] >= r.metas[0].shape.dim(static_cast<int>(axis))) return Index();
    return i;
  });
  const auto pad = [](int64_t axis, int64_t begin, int64_t size) {
    return Attrs{{"axis", axis}, {"begin", begin}, {"size", size}};
  };
  Add(cases, "pad", "rows", {F32({3, 5})}, pad(0, 2, 7), within);
  Add(cases, "pad", "columns", {F32({3, 4, 5})}, pad(-1, 1, 9), within);
  Add(cases, "pad", "tiles", {F32({3, 4000, 2})}, pad(1, 1500, 9000), within);
  Add(cases, "pad", "nothing_in", {F32({3, 0})}, pad(1, 1, 4), within);

  const auto axis = [](int64_t a) { return Attrs{{"axis", a}}; };
  Add(cases, "concat", "rows", {F32({2, 3}), F32({4, 3})}, axis(0), Joined());
  Add(cases, "concat", "columns", {F32({3, 2}), F32({3, 5}), F32({3, 1})}, axis(-1), Joined());
  Add(cases, "concat", "middle", {F32({2, 3, 4}), F32({2, 1, 4})}, axis(1), Joined());
  Add(cases, "concat", "one", {F32({2, 3})}, axis(0), Joined());
  Add(cases, "concat", "tiles", {F32({3, 9000}), F32({3, 8500})}, axis(1), Joined());
  Add(cases, "concat", "an_empty_one", {F32({2, 0}), F32({2, 3})}, axis(1), Joined());
  Add(cases, "concat", "nothing", {F32({0, 2}), F32({0, 3})}, axis(1), Joined());

  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == DType::kInvalid) continue;
    OpInput part{{row.dtype, {3, 5}}, 0, 100};
    for (int i = 0; i < 15; ++i) part.values.push_back(2 * i);
    part.check_grad = row.dtype == DType::kF32;
    Add(cases, "pad", row.name, {part}, pad(1, 2, 8), within);
    Add(cases, "concat", row.name, {part, part}, axis(1), Joined());
  }
}

}  // namespace

OpCases ViewCases() {
  OpCases cases;
  AddWindows(&cases);
  AddWrites(&cases);
  return cases;
}

}  // namespace weft::testing
