#include "fabric/base/suggest.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(NearestName, Slips_FindTheName) {
  const std::vector<std::string> names = {"model", "data", "train", "ranks", "run"};
  struct Case {
    const char* word;
    const char* nearest;
  };
  const Case cases[] = {
      {"modle", "model"}, {"modl", "model"}, {"Model", "model"}, {"trainn", "train"},
      {"tarin", "train"}, {"rnu", "run"},    {"dada", "data"},   {"optimizer", ""},
      {"xyz", ""},        {"", ""},          {"ranks", "ranks"}};
  for (const Case& c : cases) EXPECT_EQ(NearestName(c.word, names), c.nearest) << c.word;
  EXPECT_EQ(NearestName(std::string(1000, 'm'), names), "");
}

TEST(DidYouMean, NothingNear_SaysNothing) {
  EXPECT_EQ(DidYouMean("modle", {"model"}), "; did you mean 'model'?");
  EXPECT_EQ(DidYouMean("zebra", {"model"}), "");
}

}  // namespace
}  // namespace weft
