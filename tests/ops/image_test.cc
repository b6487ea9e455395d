// Where augment_images cuts: the definition by the scalar generator, independence of how rows are
// split, and that every place is reached.
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/base/philox.h"
#include "tests/ops/kernel_run.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

constexpr uint64_t kSeed = 11;
constexpr int64_t kStepNumber = 4, kKey = 9;

struct Cutting {
  int64_t padding = 0;
  bool flip = false;
  int64_t patch = 0;
};

// With mean 0 and deviation 1 / 255 a result is its byte, but for rounding.
Doubles Augment(const Shape& shape, const Doubles& bytes, const Cutting& cutting,
                int64_t first_row = 0) {
  static const auto* const tiles = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  using Ints = std::vector<int64_t>;
  const auto channels = static_cast<size_t>(shape[1]);
  const Attrs attrs = {{"mean", Ints(channels, 0)},  {"std", Ints(channels, 10000)},
                       {"padding", cutting.padding}, {"flip", cutting.flip},
                       {"patch", cutting.patch},     {"key", kKey}};
  HostArray images(TensorMeta{DType::kU8, shape}, bytes);
  const StatusOr<std::vector<HostArray>> out =
      RunKernel(*BuiltinOpSet().Find("augment_images"), {images.ref()}, attrs,
                {"", tiles->get(), {kSeed, kStepNumber, first_row}});
  EXPECT_TRUE(out.ok()) << out.status();
  Doubles y = out->at(0).ToDoubles();
  for (double& v : y) v = static_cast<double>(static_cast<int>(v * 255 + 0.5));
  return y;
}

Doubles Bytes(const Shape& shape) {
  Doubles bytes;
  for (int64_t i = 0; i < shape.elements(); ++i) {
    bytes.push_back(static_cast<double>(1 + (i * 7919 + i / 251) % 255));
  }
  return bytes;
}

PhiloxBlock DrawOf(int64_t image) {
  const PhiloxBlock s = Philox(kSeed, kKey, kStepNumber);
  return Philox(s.word[0] | uint64_t{s.word[1]} << 32, s.word[2] | uint64_t{s.word[3]} << 32,
                static_cast<uint64_t>(image));
}

TEST(AugmentImages, AnyPixel_IsTheOneThatTheDrawNames) {
  const Shape shape = {20, 2, 6, 5};
  const Cutting cutting = {3, true, 0};
  const Doubles bytes = Bytes(shape), y = Augment(shape, bytes, cutting, 5);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const int64_t x = i % 5, row = i / 5 % 6, plane = i / 30, image = i / 60;
    const PhiloxBlock draw = DrawOf(5 + image);
    const int64_t from_row = row + static_cast<int64_t>(draw.word[0] * uint64_t{7} >> 32) - 3;
    const bool mirrored = draw.word[2] >= 0x80000000u;
    const int64_t from_x =
        (mirrored ? 4 - x : x) + static_cast<int64_t>(draw.word[1] * uint64_t{7} >> 32) - 3;
    const bool inside = from_row >= 0 && from_row < 6 && from_x >= 0 && from_x < 5;
    ASSERT_EQ(y[i], inside ? bytes[plane * 30 + from_row * 5 + from_x] : 0) << i;
  }
}

TEST(AugmentImages, Patches_HoldTheSamePixels) {
  const Shape shape = {4, 3, 8, 12};
  const Doubles bytes = Bytes(shape);
  const Doubles whole = Augment(shape, bytes, {2, true, 0});
  const Doubles patches = Augment(shape, bytes, {2, true, 4});
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const int64_t c = i % 3, px = i / 3 % 4, py = i / 12 % 4, patch = i / 48 % 6, image = i / 288;
    const int64_t y = patch / 3 * 4 + py, x = patch % 3 * 4 + px;
    ASSERT_EQ(patches[i], whole[((image * 3 + c) * 8 + y) * 12 + x]) << i;
  }
}

TEST(AugmentImages, RowsSplit_SameBits) {
  const Shape shape = {10, 3, 8, 8};
  const Doubles bytes = Bytes(shape), whole = Augment(shape, bytes, {4, true, 4}, 2);
  const auto middle = bytes.begin() + 3 * 192;
  Doubles parts = Augment({3, 3, 8, 8}, {bytes.begin(), middle}, {4, true, 4}, 2);
  const Doubles rest = Augment({7, 3, 8, 8}, {middle, bytes.end()}, {4, true, 4}, 5);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

TEST(AugmentImages, ManyImages_ReachEveryPlaceAndBothHands) {
  // The one bright pixel of each image tells where it was cut; a neighbour, which way it looks.
  constexpr int64_t kImages = 4000, kSide = 9;
  const Shape shape = {kImages, 1, kSide, kSide};
  Doubles bytes(static_cast<size_t>(shape.elements()), 0.0);
  for (int64_t i = 0; i < kImages; ++i) {
    bytes[i * 81 + 4 * kSide + 4] = 200;
    bytes[i * 81 + 4 * kSide + 5] = 100;
  }
  const Doubles y = Augment(shape, bytes, {2, true, 0});
  std::set<std::pair<int64_t, int64_t>> places;
  int64_t mirrored = 0;
  for (int64_t i = 0; i < shape.elements(); ++i) {
    if (y[i] != 200) continue;
    places.emplace(i / kSide % kSide, i % kSide);
    mirrored += y[i - 1] == 100;
  }
  EXPECT_EQ(places.size(), 25u);
  EXPECT_NEAR(static_cast<double>(mirrored), kImages / 2.0, 160);  // five deviations
}

}  // namespace
}  // namespace weft::testing
