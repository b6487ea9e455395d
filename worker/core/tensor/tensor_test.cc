#include "worker/core/tensor/tensor.h"

#include "tests/support/seeded.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsStatus;
using testing::TensorOf;
using testing::TestAllocator;
using Floats = std::vector<float>;

TEST(Tensor, FromVector_ToVector_SameElements) {
  const Tensor t = TensorOf({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(t.meta(), (TensorMeta{DType::kF32, {2, 3}}));
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(ToVector<float>(t).value(), (Floats{1, 2, 3, 4, 5, 6}));
}

TEST(Tensor, OtherDtypes_RoundTrip) {
  EXPECT_EQ(
      ToVector<int64_t>(TensorFrom<int64_t>(TestAllocator(), {2}, {-5, int64_t{1} << 40}).value())
          .value(),
      (std::vector<int64_t>{-5, int64_t{1} << 40}));
  EXPECT_EQ(ToVector<uint8_t>(TensorFrom<uint8_t>(TestAllocator(), {1}, {200}).value()).value(),
            (std::vector<uint8_t>{200}));
}

TEST(Tensor, Windows_ShareStorageAndReadThroughStrides) {
  const Tensor t = TensorOf({2, 3}, {1, 2, 3, 4, 5, 6});
  const struct {
    TensorMeta meta;
    int64_t offset;
    Strides strides;
    Floats elements;
  } kRows[] = {
      {{DType::kF32, {3, 2}}, 0, {1, 3}, {1, 4, 2, 5, 3, 6}},
      {{DType::kF32, {2, 2}}, 1, {3, 1}, {2, 3, 5, 6}},
      {{DType::kF32, {2, 3}}, 3, {0, 1}, {4, 5, 6, 4, 5, 6}},
      {{DType::kF32, {3}}, 2, {-1}, {3, 2, 1}},
      {{DType::kF32, {0, 3}}, 6, {3, 1}, {}},
  };
  for (const auto& row : kRows) {
    ASSERT_OK_AND_ASSIGN(const Tensor view, t.Window(row.meta, row.offset, row.strides));
    EXPECT_EQ(view.storage(), t.storage());
    EXPECT_EQ(ToVector<float>(view).value(), row.elements);
  }
}

TEST(Tensor, WindowOfWindow_OffsetsAddUp) {
  const Tensor t = TensorOf({6}, {0, 1, 2, 3, 4, 5});
  ASSERT_OK_AND_ASSIGN(const Tensor tail, t.Window({DType::kF32, {4}}, 2, {1}));
  ASSERT_OK_AND_ASSIGN(const Tensor odd, tail.Window({DType::kF32, {2}}, 1, {2}));
  EXPECT_EQ(ToVector<float>(odd).value(), (Floats{3, 5}));
}

TEST(Tensor, Window_OutsideStorage_Refused) {
  const Tensor t = TensorOf({4}, {0, 1, 2, 3});
  EXPECT_THAT(t.Window({DType::kF32, {4}}, 1, {1}),
              IsStatus(absl::StatusCode::kInternal, "1 to 4"));
  EXPECT_THAT(t.Window({DType::kF32, {2}}, 0, {-1}), IsStatus(absl::StatusCode::kInternal));
}

TEST(Tensor, ToValueAndBack_SameTensor) {
  const Tensor t = TensorOf({1}, {7});
  const Value v = t;
  EXPECT_EQ(v.meta(), t.meta());
  EXPECT_EQ(Tensor::From(v).rep(), t.rep());
  EXPECT_FALSE(Tensor::From(Value()).valid());
  EXPECT_FALSE(Tensor::From(Value(std::make_shared<ValueRep>(TensorMeta{}))).valid());
}

TEST(Tensor, Reading_WrongTypeOrInvalid_Error) {
  EXPECT_THAT(ToVector<int32_t>(TensorOf({1}, {7})),
              IsStatus(absl::StatusCode::kInvalidArgument, "asked for i32 elements of f32[1]"));
  EXPECT_THAT(ToVector<float>(Tensor()), IsStatus(absl::StatusCode::kInvalidArgument, "invalid"));
  EXPECT_THAT(ToScalar(TensorOf({2}, {7, 8})),
              IsStatus(absl::StatusCode::kInvalidArgument, "f32[2]"));
  EXPECT_EQ(ToScalar(TensorOf({1, 1}, {7})).value(), 7);
}

TEST(Tensor, FromVector_CountDiffers_Error) {
  EXPECT_THAT(TensorFrom<float>(TestAllocator(), {2, 2}, {1, 2, 3}),
              IsStatus(absl::StatusCode::kInvalidArgument, "[2, 2] has 4 elements, got 3"));
}

TEST(Tensor, LastHandleGone_BytesReturn) {
  const int64_t before = TestAllocator().stats().live_blocks;
  {
    const Tensor t = TensorOf({4}, {0, 1, 2, 3});
    ASSERT_OK_AND_ASSIGN(Tensor view, t.Window({DType::kF32, {2}}, 0, {1}));
    EXPECT_EQ(TestAllocator().stats().live_blocks, before + 1);
  }
  EXPECT_EQ(TestAllocator().stats().live_blocks, before);
}

}  // namespace
}  // namespace weft
