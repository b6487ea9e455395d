#include "tests/support/op_case.h"

namespace weft::testing {

// Without references: tests/ops/random_test checks the numbers.
OpCases RandomCases() {
  using Ints = std::vector<int64_t>;
  const auto key = int64_t{77};
  OpCases cases;
  for (const Shape& shape : {Shape{3, 37}, Shape{2, 20001}, Shape{0, 3}, Shape{}}) {
    const std::string name = shape.rank() == 0 ? "scalar"
                             : shape[0] == 0   ? "empty"
                             : shape[0] == 2   ? "tiles"
                                               : "matrix";
    const Ints dims(shape.begin(), shape.end());
    cases.push_back(
        {"uniform", name, {}, {{"shape", dims}, {"low", -1.0}, {"high", 3.0}, {"key", key}}});
    cases.push_back({"normal", name, {}, {{"shape", dims}, {"std", 0.5}, {"key", key}}});
    cases.push_back({"dropout", name, {F32(shape)}, {{"p", 0.25}, {"key", key}}});
  }
  return cases;
}

}  // namespace weft::testing
