// The numbers that random ops draw: the definition itself, independence of how rows are split,
// statistics.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/base/philox.h"
#include "tests/ops/kernel_run.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

constexpr uint64_t kSeed = 11;
constexpr int64_t kStepNumber = 4;

Doubles Draw(const char* op, const Shape& shape, Attrs attrs, int64_t first_row = 0,
             int64_t key = 9, int64_t step = kStepNumber, uint64_t seed = kSeed) {
  static const auto* const tiles = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  attrs.Set("key", key);
  std::vector<HostArray> inputs;
  std::vector<ArrayRef> in;
  if (std::string(op) == "dropout") {
    inputs.emplace_back(TensorMeta{DType::kF32, shape}, Doubles(shape.elements(), 1.0));
    in.push_back(inputs[0].ref());
  } else {
    attrs.Set("shape", std::vector<int64_t>(shape.begin(), shape.end()));
  }
  const StatusOr<std::vector<HostArray>> out =
      RunKernel(*BuiltinOpSet().Find(op), in, attrs, {"", tiles->get(), {seed, step, first_row}});
  EXPECT_TRUE(out.ok()) << out.status();
  return out->at(0).ToDoubles();
}

const Attrs kUnit = {{"low", 0.0}, {"high", 1.0}};
const Attrs kNormal = {{"std", 1.0}};
const Attrs kHalf = {{"p", 0.5}};

// Word of global element g, by the scalar definition.
uint32_t WordOf(int64_t g, uint64_t key) {
  const PhiloxBlock s = Philox(kSeed, key, kStepNumber);
  const PhiloxBlock block =
      Philox(s.word[0] | uint64_t{s.word[1]} << 32, s.word[2] | uint64_t{s.word[3]} << 32,
             static_cast<uint64_t>(g / 4));
  return block.word[g % 4];
}

TEST(LowCopy, OfUpdatedParameters_IsWhatTheUpdateLeft) {
  constexpr int64_t kElements = 4099;
  const TensorMeta flat{DType::kF32, {kElements}}, low{DType::kBF16, {kElements}};
  const std::unique_ptr<TileRunner> tiles = MakeThreadPool(1);
  const RunOptions options = {"", tiles.get(), {kSeed, kStepNumber, 0}};
  for (const bool stochastic : {false, true}) {
    const Attrs attrs = {{"stochastic", stochastic}, {"key", int64_t{9}}};
    Doubles param, grad;
    for (int64_t i = 0; i < kElements; ++i) {
      param.push_back(std::sin(static_cast<double>(i)));
      grad.push_back(std::cos(static_cast<double>(3 * i)));
    }
    std::vector<HostArray> inputs;
    inputs.emplace_back(flat, param);
    inputs.emplace_back(low, Doubles(kElements, 0));
    inputs.emplace_back(flat, grad);
    inputs.emplace_back(TensorMeta{DType::kF32, {}}, Doubles{7});
    inputs.emplace_back(TensorMeta{DType::kF32, {}}, Doubles{0.25});
    std::vector<ArrayRef> in;
    for (HostArray& array : inputs) in.push_back(array.ref());
    StatusOr<std::vector<HostArray>> updated =
        RunKernel(*BuiltinOpSet().Find("sgd_mixed"), in, attrs, options);
    ASSERT_TRUE(updated.ok()) << updated.status();
    const StatusOr<std::vector<HostArray>> copied =
        RunKernel(*BuiltinOpSet().Find("low_copy"), {updated->at(0).ref()}, attrs, options);
    ASSERT_TRUE(copied.ok()) << copied.status();
    EXPECT_EQ(copied->at(0).ToDoubles(), updated->at(1).ToDoubles());
  }
}

TEST(Uniform, AnyElement_IsThePhiloxWord) {
  const Doubles u = Draw("uniform", {3, 67}, kUnit, 5);
  for (int64_t i = 0; i < 3 * 67; ++i) {
    ASSERT_EQ(u[i], UnitFloat(WordOf(5 * 67 + i, 9))) << i;
  }
}

TEST(Normal, AnyElement_IsBoxMullerOfItsPair) {
  const Doubles z = Draw("normal", {5, 33}, kNormal, 3);
  for (int64_t i = 0; i < 5 * 33; ++i) {
    const int64_t g = 3 * 33 + i, pair = g / 2 * 2;
    const double u = (static_cast<double>(WordOf(pair, 9) >> 8) + 1) * 0x1p-24;
    const double angle = 2 * M_PI * UnitFloat(WordOf(pair + 1, 9));
    const double radius = std::sqrt(-2 * std::log(u));
    ASSERT_NEAR(z[i], radius * (g % 2 == 0 ? std::cos(angle) : std::sin(angle)), 3e-6) << i;
  }
}

TEST(RandomOps, RowsSplit_SameBits) {
  for (const auto& [op, attrs] :
       {std::pair{"uniform", kUnit}, {"normal", kNormal}, {"dropout", kHalf}}) {
    const Doubles whole = Draw(op, {10, 4099}, attrs, 2);
    Doubles parts = Draw(op, {3, 4099}, attrs, 2);
    const Doubles rest = Draw(op, {7, 4099}, attrs, 5);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << op;
  }
}

TEST(RandomOps, OtherKeySeedOrStep_OtherNumbers) {
  const Doubles u = Draw("uniform", {64}, kUnit);
  EXPECT_NE(Draw("uniform", {64}, kUnit, 0, 10), u);
  EXPECT_NE(Draw("uniform", {64}, kUnit, 0, 9, 5), u);
  EXPECT_NE(Draw("uniform", {64}, kUnit, 0, 9, kStepNumber, 12), u);
}

// Mean and standard deviation of n numbers, as multiples of what chance allows.
void ExpectMoments(const Doubles& x, double mean, double deviation) {
  double sum = 0, squares = 0;
  for (double v : x) sum += v;
  const double n = static_cast<double>(x.size()), got = sum / n;
  for (double v : x) squares += (v - got) * (v - got);
  EXPECT_NEAR(got, mean, 5 * deviation / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), deviation, 5 * deviation / std::sqrt(n));
}

TEST(Uniform, ManyNumbers_MomentsFit) {
  ExpectMoments(Draw("uniform", {200, 1000}, {{"low", -2.0}, {"high", 4.0}}), 1, 6 / std::sqrt(12));
}

TEST(Normal, ManyNumbers_MomentsFit) {
  ExpectMoments(Draw("normal", {200, 1000}, {{"std", 0.3}}), 0, 0.3);
}

TEST(Dropout, ManyElements_KeepsTheShareAndScales) {
  const Doubles y = Draw("dropout", {200, 1000}, {{"p", 0.2}});
  int64_t zeros = 0;
  for (double v : y) {
    if (v == 0)
      ++zeros;
    else
      ASSERT_EQ(v, 1.25);
  }
  EXPECT_NEAR(static_cast<double>(zeros), 40000, 5 * std::sqrt(200000 * 0.2 * 0.8));
}

TEST(Dropout, ProbabilityZero_KeepsAll) {
  EXPECT_EQ(Draw("dropout", {7, 9}, {{"p", 0.0}}), Doubles(63, 1.0));
}

}  // namespace
}  // namespace weft::testing
