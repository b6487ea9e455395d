#include "worker/core/device/scalar_math.h"

#include <cmath>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ScalarMath, AgainstTheSystemsLibrary_ManyPoints_WithinAFewUnits) {
  for (double x = -600; x <= 600; x += 0.37) {
    EXPECT_NEAR(ExactExp(x) / std::exp(x), 1, 4e-15) << x;
  }
  for (double x = 1e-30; x < 1e30; x *= 1.7) {
    EXPECT_NEAR(ExactLog(x), std::log(x), 4e-15 * (1 + std::fabs(std::log(x)))) << x;
  }
  for (double x = -2e5; x < 2e5; x += 17.3) {
    EXPECT_NEAR(ExactSineCosine(x).sine, std::sin(x), 1e-14) << x;
    EXPECT_NEAR(ExactSineCosine(x).cosine, std::cos(x), 1e-14) << x;
  }
}

TEST(ScalarMath, AtItsFixedPoints_Exact) {
  EXPECT_EQ(ExactExp(0), 1);
  EXPECT_EQ(ExactLog(1), 0);
  EXPECT_EQ(ExactSineCosine(0).sine, 0);
  EXPECT_EQ(ExactSineCosine(0).cosine, 1);
}

}  // namespace
}  // namespace weft
