#include "fabric/opset/grad_helpers.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

namespace weft {
namespace {

// Writes down what is emitted; knows the shapes of sum and reshape.
class Recorder final : public Emitter {
 public:
  Values EmitAll(absl::string_view op, const Values& inputs, const Attrs& attrs) override {
    Shape shape = inputs[0].shape();
    std::string call(op);
    if (op == "sum") {
      for (int64_t axis : attrs.GetInts("axes")) {
        absl::StrAppend(&call, " ", axis);
        shape.set_dim(static_cast<int>(axis), 1);
      }
      // Not kept: only leading dimensions here.
      if (!attrs.GetBool("keep")) {
        shape = Shape(shape.begin() + attrs.GetInts("axes").size(), shape.end());
      }
    } else if (op == "reshape") {
      const std::vector<int64_t> dims = attrs.GetInts("shape");
      shape = Shape(dims.begin(), dims.end());
    }
    calls.push_back(call);
    return {Make(shape)};
  }
  static Value Make(const Shape& shape) {
    return Value(std::make_shared<ValueRep>(TensorMeta{DType::kF32, shape}));
  }
  std::vector<std::string> calls;
};

TEST(SumTo, BroadcastDimensions_AreSummedAndOnlyThose) {
  struct Row {
    Shape from, to;
    std::vector<std::string> calls;
  };
  const Row rows[] = {
      {{2, 3}, {2, 3}, {}},        {{2, 3}, {3}, {"sum 0"}},
      {{2, 3}, {2, 1}, {"sum 1"}}, {{4, 2, 3}, {1, 3}, {"sum 0 1", "reshape"}},
      {{2, 3}, {}, {"sum 0 1"}},   {{1, 3}, {3}, {"sum 0"}},
  };
  for (const Row& row : rows) {
    Recorder e;
    const Value y = SumTo(e, Recorder::Make(row.from), row.to);
    EXPECT_EQ(y.shape(), row.to);
    EXPECT_EQ(e.calls, row.calls) << ToString(row.from) << " to " << ToString(row.to);
  }
}

TEST(SumTo, InvalidValue_StaysInvalid) {
  Recorder e;
  EXPECT_FALSE(SumTo(e, Value(), {3}).valid());
  EXPECT_TRUE(e.calls.empty());
}

TEST(Reshape, SameShape_EmitsNothing) {
  Recorder e;
  EXPECT_EQ(Reshape(e, Recorder::Make({2, 3}), {2, 3}).shape(), (Shape{2, 3}));
  EXPECT_TRUE(e.calls.empty());
}

TEST(BroadcastShapes, Pairs_FollowNumPysRule) {
  struct Row {
    Shape a, b, out;
  };
  const Row rows[] = {{{2, 3}, {3}, {2, 3}},
                      {{4, 1}, {3}, {4, 3}},
                      {{}, {5}, {5}},
                      {{0, 3}, {1, 3}, {0, 3}},
                      {{2, 1, 4}, {3, 1}, {2, 3, 4}}};
  for (const Row& row : rows) {
    for (const bool swapped : {false, true}) {
      const auto out = swapped ? BroadcastShapes(row.b, row.a) : BroadcastShapes(row.a, row.b);
      ASSERT_TRUE(out.ok()) << out.status();
      EXPECT_EQ(*out, row.out);
    }
  }
  const auto bad = BroadcastShapes({2, 3}, {2, 4});
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Emitter, SeveralErrors_KeepsTheFirst) {
  Recorder e;
  EXPECT_TRUE(e.status().ok());
  e.Fail(InvalidArgument("first"));
  e.Fail(NotFound("second"));
  EXPECT_EQ(e.status(), InvalidArgument("first"));
}

}  // namespace
}  // namespace weft
