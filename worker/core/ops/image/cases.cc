#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

using Ints = std::vector<int64_t>;

OpInput Images(const Shape& shape) { return {{DType::kU8, shape}, 0, 255}; }

// Of images that stay in place.
std::vector<Doubles> Reference(const RefArgs& a) {
  constexpr double kUnit = 10000, kLargest = 255;
  const Shape& s = a.metas[0].shape;
  const int64_t channels = s[1], height = s[2], width = s[3];
  const int64_t p = a.attrs.GetInt("patch");
  const Ints mean = a.attrs.GetInts("mean"), deviation = a.attrs.GetInts("std");
  Doubles y(a.in[0].size());
  for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
    const int64_t column = i % width, row = i / width % height, c = i / width / height % channels;
    int64_t to = i;
    if (p > 0) {
      const int64_t image = i / (width * height * channels);
      const int64_t patch = row / p * (width / p) + column / p;
      const int64_t patches = height / p * (width / p);
      to = (((image * patches + patch) * p + row % p) * p + column % p) * channels + c;
    }
    const double unit = a.in[0][i] / kLargest;
    y[to] =
        (unit - static_cast<double>(mean[c]) / kUnit) / (static_cast<double>(deviation[c]) / kUnit);
  }
  return {y};
}

Attrs Of(const Ints& mean, const Ints& deviation, int64_t padding, bool flip, int64_t patch) {
  return {{"mean", mean}, {"std", deviation}, {"padding", padding},
          {"flip", flip}, {"patch", patch},   {"key", int64_t{77}}};
}

}  // namespace

// Rows that draw have no reference: tests/ops/image_test checks where images are cut.
OpCases ImageCases() {
  const Ints mean = {4914, 4822, 4465}, deviation = {2470, 2435, 2616};
  const std::string op = "augment_images";
  OpCases cases;
  const auto add = [&](const std::string& name, const Shape& shape, const Attrs& attrs) {
    OpCase row{op, name, {Images(shape)}, attrs};
    row.absolute = 2e-6;
    const bool draws = attrs.GetInt("padding") > 0 || attrs.GetBool("flip");
    if (!draws) row.reference = Reference;
    cases.push_back(row);
  };
  add("whole", {3, 3, 32, 32}, Of(mean, deviation, 0, false, 0));
  add("patches", {3, 3, 32, 32}, Of(mean, deviation, 0, false, 4));
  add("odd_sides", {2, 2, 6, 9}, Of({0, 5000}, {10000, 2500}, 0, false, 3));
  add("one_pixel", {5, 1, 1, 1}, Of({5000}, {2500}, 0, false, 1));
  add("empty", {0, 3, 8, 8}, Of(mean, deviation, 0, false, 4));
  add("cut", {7, 3, 32, 32}, Of(mean, deviation, 4, true, 0));
  add("cut_patches", {7, 3, 32, 32}, Of(mean, deviation, 4, true, 4));
  add("border_alone", {9, 1, 2, 3}, Of({0}, {10000}, 5, false, 0));
  add("flip_alone", {9, 2, 4, 6}, Of({0, 0}, {10000, 300}, 0, true, 2));
  return cases;
}

}  // namespace weft::testing
