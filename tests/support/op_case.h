// OpCase: one row of a family's cases.cc, from which tests/ops derives its checks. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fabric/base/tensor_meta.h"
#include "fabric/opset/attrs.h"

namespace weft::testing {

// One operand's elements as doubles, row-major. Integer operands hold whole numbers.
using Doubles = std::vector<double>;

// How an input is drawn: floats uniform in [low, high), integers uniform in the whole numbers [low,
// high]. The draws are the same in every run. `values`, when there are any, are taken instead.
struct OpInput {
  TensorMeta meta;
  double low = -1;
  double high = 1;
  std::vector<double> values = {};
  bool check_grad = true;  // compare this input's gradient against differences, if it is a float
};

// What a reference sees; `in[i]` has the shape metas[i].
struct RefArgs {
  const std::vector<Doubles>& in;
  const std::vector<TensorMeta>& metas;
  const std::vector<TensorMeta>& out_metas;
  const Attrs& attrs;
};
// All results, in-place ones included, in the order of OpDef::outputs (in-place ops: the written
// inputs).
using RefFn = std::function<std::vector<Doubles>(const RefArgs&)>;

struct OpCase {
  std::string op;
  std::string name;  // unique within the op, part of the test's name: letters, digits and _
  std::vector<OpInput> inputs;
  Attrs attrs = {};
  // A result r passes where |kernel - r| <= absolute + relative * |r|; equal infinities and two NaN
  // pass.
  double relative = 2e-6;
  double absolute = 1e-6;
  // Whether the function is smooth around all drawn inputs, so that differences can check its
  // gradient.
  bool smooth = true;
  double grad_tolerance =
      2e-3;  // of the gradient check: absolute and relative to the greatest entry
  // Whether, where the op's labels say that rows of dimension 0 do not meet, a row's bits do not
  // depend on the other rows being there. False for library products, which choose by shape.
  bool rows_independent = true;
  // Null only for random ops, whose own test checks their numbers.
  RefFn reference = nullptr;
};

using OpCases = std::vector<OpCase>;

// f32 of that shape, drawn from [low, high).
inline OpInput F32(const Shape& shape, double low = -1, double high = 1) {
  return {{DType::kF32, shape}, low, high};
}
// Ids from [low, high].
inline OpInput I32(const Shape& shape, int64_t low, int64_t high) {
  return {{DType::kI32, shape}, static_cast<double>(low), static_cast<double>(high)};
}

// Defined by each family's cases.cc.
OpCases ElementwiseCases();
OpCases ReduceCases();
OpCases ViewCases();
OpCases IndexCases();
OpCases RandomCases();
OpCases MatmulCases();
OpCases NormCases();
OpCases AttentionCases();
OpCases LossCases();
OpCases OptimCases();
OpCases ImageCases();

}  // namespace weft::testing
