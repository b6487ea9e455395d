#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

// Per result, its elements of x.
using Over = std::function<double(const Doubles&)>;

RefFn ReduceRef(Over f) {
  return [f = std::move(f)](const RefArgs& r) {
    const Shape& shape = r.metas[0].shape;
    const std::vector<int64_t> axes = r.attrs.GetInts("axes");
    std::vector<bool> reduced(shape.rank(), axes.empty());
    for (int64_t axis : axes) reduced[axis < 0 ? axis + shape.rank() : axis] = true;
    std::vector<Doubles> groups(r.out_metas[0].elements());
    for (int64_t i = 0; i < shape.elements(); ++i) {
      int64_t rest = i, group = 0, step = 1;
      for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        if (!reduced[axis]) {
          group += rest % shape.dim(axis) * step;
          step *= shape.dim(axis);
        }
        rest /= shape.dim(axis);
      }
      groups[group].push_back(r.in[0][i]);
    }
    Doubles y;
    for (const Doubles& group : groups) y.push_back(f(group));
    return std::vector<Doubles>{y};
  };
}

double Sum(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum;
}
double Max(const Doubles& x) {
  double most = -std::numeric_limits<double>::infinity();
  for (double v : x) most = std::isnan(v) || v > most ? v : most;
  return most;
}

// One result row a row of the last dimension.
RefFn RowRef(std::function<Doubles(const Doubles&)> f) {
  return [f = std::move(f)](const RefArgs& r) {
    const int64_t width = r.metas[0].shape.dim(-1);
    Doubles y;
    for (size_t i = 0; i < r.in[0].size(); i += width) {
      const Doubles row(r.in[0].begin() + i, r.in[0].begin() + i + width);
      for (double v : f(row)) y.push_back(v);
    }
    return std::vector<Doubles>{y};
  };
}

Doubles LogSoftmax(const Doubles& x) {
  const double most = Max(x);
  double sum = 0;
  for (double v : x) sum += std::exp(v - most);
  Doubles y;
  for (double v : x) y.push_back(v - most - std::log(sum));
  return y;
}
Doubles Softmax(const Doubles& x) {
  Doubles y = LogSoftmax(x);
  for (double& v : y) v = std::exp(v);
  return y;
}
Doubles Argmax(const Doubles& x) {
  return {static_cast<double>(std::max_element(x.begin(), x.end()) - x.begin())};
}

void AddReductions(OpCases* cases) {
  struct Row {
    const char* name;
    Shape shape;
    std::vector<int64_t> axes;
  };
  const Row rows[] = {
      {"all", {3, 5, 7}, {}},
      {"last", {6, 37}, {-1}},
      {"first", {37, 6}, {0}},
      {"middle", {3, 9, 40}, {1}},
      {"ends", {5, 6, 7}, {0, 2}},
      {"last_two", {4, 5, 6}, {1, 2}},
      {"first_two", {4, 5, 66}, {0, 1}},
      {"apart", {3, 4, 2, 5}, {1, 3}},
      {"long", {140000}, {}},
      {"tall", {200, 530}, {0}},
      {"long_rows", {2, 70000}, {1}},
      {"scalar", {}, {}},
      {"ones", {4, 1, 3}, {1}},
      {"one_column", {300, 1}, {0}},
      // Columns in packs and one by one, by one block, by several, by groups of them.
      {"tall_wide", {260, 1056}, {0}},
      {"tall_narrow", {4099, 24}, {0}},
      {"tall_odd", {4099, 21}, {0}},
      {"tallest", {40000, 8}, {0}},
      {"tall_middle", {3, 1100, 16}, {1}},
      {"tall_apart", {40, 3, 60, 8}, {0, 2}},
      // Rows in packs, of a warp, of a block and of several.
      {"tiny_rows", {70, 3}, {1}},
      {"short_rows", {9, 64}, {1}},
      {"block_rows", {3, 2048}, {1}},
      {"odd_rows", {2, 1101}, {1}},
      {"segment_rows", {3, 20000}, {1}},
      {"nothing", {0, 3}, {0}},
      {"no_results", {0, 3}, {1}},
  };
  const std::pair<const char*, Over> kinds[] = {
      {"sum", Sum},
      {"mean", [](const Doubles& x) { return Sum(x) / static_cast<double>(x.size()); }},
      {"max", Max}};
  for (const auto& [op, f] : kinds) {
    for (const Row& row : rows) {
      for (const bool keep : {false, true}) {
        OpCase c{op, std::string(row.name) + (keep ? "_keep" : ""), {F32(row.shape)}};
        if (!row.axes.empty()) c.attrs.Set("axes", row.axes);
        if (keep) c.attrs.Set("keep", true);
        c.reference = ReduceRef(f);
        c.absolute = 2e-7 * std::sqrt(static_cast<double>(row.shape.elements() + 25));
        cases->push_back(std::move(c));
      }
    }
  }
  OpCase nan{"max", "nan", {F32({2, 3})}, {{"axes", std::vector<int64_t>{1}}}};
  nan.inputs[0].values = {1, NAN, 2, 5, -1, 4};
  nan.smooth = false;
  nan.reference = ReduceRef(Max);
  cases->push_back(nan);
}

void AddRowFunctions(OpCases* cases) {
  const std::pair<const char*, std::function<Doubles(const Doubles&)>> kinds[] = {
      {"softmax", Softmax}, {"log_softmax", LogSoftmax}, {"argmax", Argmax}};
  const std::pair<const char*, Shape> shapes[] = {
      {"matrix", {6, 37}}, {"cube", {3, 5, 64}},  {"long", {3, 5001}}, {"vector", {9}},
      {"one", {4, 1}},     {"empty", {0, 4}},     {"warp", {9, 1000}}, {"block", {3, 4096}},
      {"wide", {2, 9008}}, {"widest", {2, 33000}}};
  for (const auto& [op, f] : kinds) {
    for (const auto& [name, shape] : shapes) {
      OpCase c{op, name, {F32(shape, -4, 4)}};
      c.reference = RowRef(f);
      cases->push_back(std::move(c));
    }
    OpCase extreme{op, "extreme", {F32({2, 4}, -4, 4)}};
    constexpr double kLow = -std::numeric_limits<double>::infinity();
    extreme.inputs[0].values = {1e4, -1e4, 1e4, 0, kLow, 3, kLow, 3};
    extreme.smooth = false;
    extreme.reference = RowRef(f);
    cases->push_back(std::move(extreme));
  }
}

}  // namespace

OpCases ReduceCases() {
  OpCases cases;
  AddReductions(&cases);
  AddRowFunctions(&cases);
  return cases;
}

}  // namespace weft::testing
