// Values and gradients of ops against PyTorch's in float64 (op_values.json; make_op_values.py
// states its layout), by the eager emitter and the tape.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/golden/formula.h"
#include "worker/core/core.h"

namespace weft {
namespace {

using nlohmann::json;

// Of the largest magnitude in a result, FP32. A mean far from zero is itself rounded to FP32, which
// x - mean feels.
double Tolerance(const std::string& what) {
  return what.find("far_mean") != std::string::npos ? 2e-4 : 2e-5;
}

Shape ShapeOf(const json& dims) {
  Shape shape;
  for (const json& d : dims) shape.Append(d.get<int64_t>());
  return shape;
}

Attrs AttrsOf(const json& items) {
  Attrs attrs;
  for (const auto& [name, value] : items.items()) {
    if (value.is_boolean()) {
      attrs.Set(name, value.get<bool>());
    } else if (value.is_array()) {
      attrs.Set(name, value.get<std::vector<int64_t>>());
    } else if (value.is_number_integer()) {
      attrs.Set(name, value.get<int64_t>());
    } else {
      attrs.Set(name, value.get<double>());
    }
  }
  return attrs;
}

template <typename T>
std::vector<T> Listed(const json& values) {
  std::vector<T> out;
  for (const json& v : values)
    out.push_back(v.is_number_float() ? static_cast<T>(v.get<double>())
                                      : static_cast<T>(v.get<int64_t>()));
  return out;
}

Tensor MakeInput(EagerEmitter& e, const json& input) {
  const Shape shape = ShapeOf(input.at("shape"));
  const std::string dtype = input.at("dtype").get<std::string>();
  if (dtype == "i32") return e.Make<int32_t>(shape, Listed<int32_t>(input.at("values")));
  if (dtype == "i64") return e.Make<int64_t>(shape, Listed<int64_t>(input.at("values")));
  if (input.contains("values")) return e.Make<float>(shape, Listed<float>(input.at("values")));
  const uint32_t number = input.at("number").get<uint32_t>();
  const float scale = input.at("scale").get<float>(), shift = input.at("shift").get<float>();
  std::vector<float> elements(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = scale * testing::FormulaValue(number, static_cast<uint32_t>(i)) + shift;
  }
  return e.Make<float>(shape, elements);
}

void ExpectNear(const Tensor& got, const json& values, const std::string& what) {
  const auto read = ToVector<float>(got);
  ASSERT_TRUE(read.ok()) << what << ": " << read.status();
  const std::vector<double> want = values.get<std::vector<double>>();
  ASSERT_EQ(read->size(), want.size()) << what;
  double largest = 1e-6;
  for (const double w : want) largest = std::max(largest, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR((*read)[i], want[i], Tolerance(what) * largest) << what << " element " << i;
  }
}

void RunCase(const json& c) {
  const std::string name = c.at("op").get<std::string>() + " " + c.at("name").get<std::string>();
  auto core = Core::Open({.threads = 1, .seed = 1});
  ASSERT_TRUE(core.ok()) << core.status();
  EagerEmitter& e = (*core)->emitter();
  const bool has_gradients = !c.at("grads").empty();
  Values inputs;
  std::map<std::string, Tensor> by_name;
  for (const json& input : c.at("inputs")) {
    const Tensor t = MakeInput(e, input);
    ASSERT_TRUE(e.status().ok()) << name << ": " << e.status();
    if (has_gradients && t.dtype() == DType::kF32) {
      ASSERT_TRUE(RequireGrad(t).ok()) << name;
    }
    by_name[input.at("name").get<std::string>()] = t;
    inputs.push_back(t);
  }
  const OpDef* op = BuiltinOpSet().Find(c.at("op").get<std::string>());
  ASSERT_NE(op, nullptr) << name;
  const Values results = e.EmitAll(op->name, inputs, AttrsOf(c.at("attrs")));
  ASSERT_TRUE(e.status().ok()) << name << ": " << e.status();
  for (const json& output : c.at("outputs")) {
    const std::string result = output.at("name").get<std::string>();
    const auto at = std::find(op->outputs.begin(), op->outputs.end(), result);
    const auto written = by_name.find(result);  // optimizers' outputs are inputs that they write
    ASSERT_TRUE(at != op->outputs.end() || written != by_name.end())
        << name << " has no result " << result;
    const Tensor got = at != op->outputs.end()
                           ? Tensor::From(results[static_cast<size_t>(at - op->outputs.begin())])
                           : written->second;
    ExpectNear(got, output.at("values"), name + " " + result);
  }
  if (!has_gradients) return;
  const Shape& shape = results[0].shape();
  std::vector<float> weights(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = testing::FormulaValue(100, static_cast<uint32_t>(i));
  }
  const Tensor loss = e.Run("sum", {Mul(e, results[0], e.Make<float>(shape, weights))});
  const Status backward = Backward(e, loss);
  ASSERT_TRUE(backward.ok()) << name << ": " << backward;
  for (const json& grad : c.at("grads")) {
    const std::string of = grad.at("of").get<std::string>();
    ExpectNear(GradOf(by_name.at(of)), grad.at("values"), name + " gradient of " + of);
  }
}

TEST(OpGolden, EveryCase_EqualsPyTorch) {
  std::ifstream in("tests/golden/op_values.json");
  ASSERT_TRUE(in.good());
  std::stringstream text;
  text << in.rdbuf();
  const json file = json::parse(text.str());
  ASSERT_GE(file.at("cases").size(), 29u);
  for (const json& c : file.at("cases")) RunCase(c);
}

}  // namespace
}  // namespace weft
