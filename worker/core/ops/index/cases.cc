#include <cmath>
#include <utility>

#include "tests/support/op_case.h"

namespace weft::testing {
namespace {

std::vector<Doubles> Embedding(const RefArgs& r) {
  const int64_t rows = r.metas[0].shape.dim(0), width = r.metas[0].shape.dim(1);
  Doubles y;
  for (double id : r.in[1]) {
    const int64_t v = static_cast<int64_t>(id);
    for (int64_t i = 0; i < width; ++i) {
      y.push_back(v >= 0 && v < rows ? r.in[0][v * width + i] : NAN);
    }
  }
  return {y};
}

std::vector<Doubles> EmbeddingGrad(const RefArgs& r) {
  const int64_t rows = r.attrs.GetInt("rows"), width = r.metas[0].shape.dim(-1);
  Doubles table(rows * width);
  for (size_t k = 0; k < r.in[1].size(); ++k) {
    const int64_t v = static_cast<int64_t>(r.in[1][k]);
    if (v < 0 || v >= rows) continue;
    for (int64_t i = 0; i < width; ++i) table[v * width + i] += r.in[0][k * width + i];
  }
  return {table};
}

}  // namespace

OpCases IndexCases() {
  OpCases cases;
  struct Row {
    const char* name;
    int64_t rows, width;
    Shape ids;
    int64_t low, high;
  };
  const Row rows[] = {
      {"small", 11, 5, {3, 7}, 0, 10},
      {"wide", 40, 700, {2, 30}, 0, 39},
      {"few_ids", 300, 64, {500}, 5, 7},
      {"outside", 6, 4, {40}, -2, 8},
      {"no_ids", 5, 3, {0, 2}, 0, 4},
      {"one", 3, 4, {}, 0, 2},
      {"many_rows", 2000, 33, {64}, 0, 1999},
      {"no_width", 4, 0, {5}, 0, 3},
      // Lists of positions that are long, and tables that are large.
      {"long_lists", 7, 24, {5, 1000}, 0, 6},
      {"sorted", 3000, 16, {1500}, -9, 3020},
      {"sorted_odd", 3000, 5, {1500}, 990, 1010},
      {"one_list", 500, 4, {9000}, 3, 3},
      {"large_table", 70000, 4, {64}, 0, 69999},
  };
  for (const Row& row : rows) {
    OpCase forward{
        "embedding", row.name, {F32({row.rows, row.width}), I32(row.ids, row.low, row.high)}};
    forward.relative = forward.absolute = 0;
    forward.smooth = row.low >= 0;
    forward.reference = Embedding;
    cases.push_back(std::move(forward));

    Shape dy = row.ids;
    dy.Append(row.width);
    OpCase grad{"embedding_grad",
                row.name,
                {F32(dy), I32(row.ids, row.low, row.high)},
                {{"rows", row.rows}}};
    grad.absolute = 1e-5;
    grad.reference = EmbeddingGrad;
    cases.push_back(std::move(grad));
  }
  return cases;
}

}  // namespace weft::testing
