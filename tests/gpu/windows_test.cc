// Ops that take any strides, on windows that views make (transposed, cut out, stretched): the same
// bits as on their contiguous copies. The sweep compares those with references.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/device_call.h"

namespace weft::testing {
namespace {

using Ints = std::vector<int64_t>;
using View = std::function<ArrayRef(ArrayRef)>;

View Whole() {
  return [](ArrayRef x) { return x; };
}
View Swapped(int a, int b) {
  return [a, b](ArrayRef x) {
    const int64_t dim = x.shape.dim(a), stride = x.strides.dim(a);
    x.shape.set_dim(a, x.shape.dim(b));
    x.strides.set_dim(a, x.strides.dim(b));
    x.shape.set_dim(b, dim);
    x.strides.set_dim(b, stride);
    return x;
  };
}
View Cut(int axis, int64_t begin, int64_t end) {
  return [=](ArrayRef x) {
    const auto bytes = begin * x.strides.dim(axis) * static_cast<int64_t>(SizeOf(x.dtype));
    x.data = x.as<char>() + bytes;
    x.shape.set_dim(axis, end - begin);
    return x;
  };
}
// Dimension `axis`, of one element, repeated.
View Repeated(int axis, int64_t count) {
  return [=](ArrayRef x) {
    x.shape.set_dim(axis, count);
    x.strides.set_dim(axis, 0);
    return x;
  };
}

struct Operand {
  Shape shape;  // of what the window is of
  View view;
};
struct Row {
  const char* name;
  const char* op;
  std::vector<Operand> operands;
  Attrs attrs = {};
};

const std::vector<Row>& Rows() {
  const auto axes = [](Ints list) { return Attrs{{"axes", std::move(list)}}; };
  const auto axis = [](int64_t a) { return Attrs{{"axis", a}}; };
  const Attrs to_bf16 = {{"dtype", std::string("bf16")}}, to_f64 = {{"dtype", std::string("f64")}};
  static const auto* const rows = new std::vector<Row>{
      {"transposed", "copy", {{{70, 37}, Swapped(0, 1)}}},
      {"transposed_apart", "copy", {{{3, 33, 5, 40}, Swapped(1, 3)}}},
      {"transposed_heads", "copy", {{{3, 33, 5, 40}, Swapped(1, 2)}}},
      {"columns", "copy", {{{9, 80}, Cut(1, 8, 72)}}},
      {"odd_columns", "copy", {{{9, 80}, Cut(1, 1, 66)}}},
      {"rows", "copy", {{{9, 37}, Cut(0, 2, 7)}}},
      {"repeated_rows", "copy", {{{1, 64}, Repeated(0, 5)}}},
      {"repeated_columns", "copy", {{{6, 1}, Repeated(1, 40)}}},
      {"transposed", "cast", {{{70, 37}, Swapped(0, 1)}}, to_f64},
      {"columns", "cast", {{{9, 80}, Cut(1, 8, 72)}}, to_bf16},
      {"columns", "gelu", {{{9, 80}, Cut(1, 8, 72)}}},
      {"odd_columns", "gelu", {{{9, 80}, Cut(1, 1, 66)}}},
      {"columns", "add", {{{9, 80}, Cut(1, 16, 64)}, {{48}, Whole()}}},
      {"odd_columns", "mul", {{{9, 80}, Cut(1, 3, 64)}, {{9, 1}, Whole()}}},
      {"transposed", "sub", {{{48, 80}, Swapped(0, 1)}, {{80, 48}, Whole()}}},
      {"repeated", "add", {{{4, 1, 64}, Repeated(1, 3)}, {{3, 80}, Cut(1, 16, 80)}}},
      {"tall_columns", "sum", {{{1100, 80}, Cut(1, 16, 64)}}, axes({0})},
      {"tall_odd_columns", "sum", {{{1100, 80}, Cut(1, 3, 64)}}, axes({0})},
      {"tall_transposed", "sum", {{{48, 1100}, Swapped(0, 1)}}, axes({0})},
      {"few_rows", "mean", {{{3, 9, 80}, Cut(1, 2, 8)}}, axes({1})},
      {"short_rows", "sum", {{{40, 80}, Cut(1, 16, 64)}}, axes({1})},
      {"odd_rows", "max", {{{40, 80}, Cut(1, 1, 64)}}, axes({1})},
      {"long_rows", "sum", {{{3, 20000}, Cut(1, 16, 19968)}}, axes({1})},
      {"long_transposed", "sum", {{{1500, 3}, Swapped(0, 1)}}, axes({1})},
      {"stretched_and_cut",
       "concat",
       {{{1, 4, 16}, Repeated(0, 3)}, {{3, 7, 16}, Cut(1, 2, 5)}},
       axis(1)},
      {"odd_pieces", "concat", {{{3, 9}, Cut(1, 1, 4)}, {{3, 9}, Cut(1, 0, 9)}}, axis(1)},
      {"transposed", "concat", {{{6, 5, 4}, Swapped(0, 2)}, {{4, 2, 6}, Whole()}}, axis(1)},
      {"cut",
       "pad",
       {{{3, 9, 8}, Cut(1, 2, 7)}},
       {{"axis", int64_t{1}}, {"begin", int64_t{3}}, {"size", int64_t{12}}}},
      {"transposed",
       "pad",
       {{{7, 5}, Swapped(0, 1)}},
       {{"axis", int64_t{1}}, {"begin", int64_t{2}}, {"size", int64_t{11}}}},
  };
  return *rows;
}

std::vector<HostArray> OnGpu(const OpDef& op, const std::vector<ArrayRef>& in, const Attrs& attrs) {
  StatusOr<std::unique_ptr<DeviceCall>> call = DeviceCall::Make(op, in, attrs, "default");
  EXPECT_TRUE(call.ok()) << call.status();
  if (!call.ok()) return {};
  const Status launched = (*call)->Launch({}, DeviceCall::How::kEager);
  EXPECT_TRUE(launched.ok()) << launched;
  StatusOr<std::vector<HostArray>> results = (*call)->Results();
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<HostArray>();
}

TEST(Windows, EachViewAndDType_SameBitsAsContiguous) {
  for (const Row& row : Rows()) {
    const std::string name = std::string(row.op) + " " + row.name;
    const bool moves = name.starts_with("copy") || name.starts_with("concat");
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kU8}) {
      if (!IsFloat(dtype) && !moves) continue;
      SCOPED_TRACE(name + " " + NameOf(dtype));
      std::vector<HostArray> bases, copies;
      std::vector<ArrayRef> windows, contiguous;
      for (const Operand& operand : row.operands) {
        Doubles elements(static_cast<size_t>(operand.shape.elements()));
        for (size_t i = 0; i < elements.size(); ++i) {
          elements[i] = static_cast<double>(i * 7919 % 251);
        }
        bases.emplace_back(TensorMeta{dtype, operand.shape}, elements);
      }
      for (size_t i = 0; i < bases.size(); ++i) {
        windows.push_back(row.operands[i].view(bases[i].ref()));
        copies.emplace_back(TensorMeta{dtype, windows[i].shape}, ToDoubles(windows[i]));
      }
      for (HostArray& copy : copies) contiguous.push_back(copy.ref());
      const OpDef& op = *BuiltinOpSet().Find(row.op);
      std::vector<HostArray> got = OnGpu(op, windows, row.attrs);
      std::vector<HostArray> want = OnGpu(op, contiguous, row.attrs);
      ASSERT_EQ(got.size(), 1u);
      ASSERT_EQ(want.size(), 1u);
      const ArrayRef a = got[0].ref(), b = want[0].ref();
      const size_t bytes = static_cast<size_t>(a.elements()) * SizeOf(a.dtype);
      EXPECT_EQ(std::memcmp(a.data, b.data, bytes), 0);
    }
  }
}

}  // namespace
}  // namespace weft::testing
