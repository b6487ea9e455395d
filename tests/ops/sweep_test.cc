// Checks derived from each row of each family's cases.cc: numbers against the reference, the same
// bits with any number of threads, for any strides and for rows on their own, and FP64 where the op
// has it.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <gtest/gtest.h>

#include "tests/ops/case_data.h"
#include "tests/ops/kernel_run.h"
#include "worker/core/device/cpu_device.h"

namespace weft::testing {
namespace {

TileRunner* Pool(int threads) {
  static const auto* const one = new std::unique_ptr<TileRunner>(MakeThreadPool(1));
  static const auto* const three = new std::unique_ptr<TileRunner>(MakeThreadPool(3));
  return threads == 1 ? one->get() : three->get();
}

const OpDef& OpOf(const OpCase& c) {
  const StatusOr<const OpDef*> op = BuiltinOpSet().Get(c.op);
  EXPECT_TRUE(op.ok()) << op.status();
  return **op;
}

std::vector<ArrayRef> Refs(std::vector<HostArray>* arrays) {
  std::vector<ArrayRef> refs;
  for (HostArray& array : *arrays) refs.push_back(array.ref());
  return refs;
}

std::vector<std::string> Candidates(const OpCase& c, const std::vector<ArrayRef>& in) {
  const StatusOr<std::vector<TensorMeta>> out = InferOp(OpOf(c), MetasOf(c), c.attrs);
  EXPECT_TRUE(out.ok()) << out.status();
  std::vector<std::string> names = CandidatesOf(OpOf(c), in, *out, c.attrs);
  if (names.empty()) names.push_back("");
  return names;
}

bool Close(double got, double want, const OpCase& c) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return want == got;
  return std::abs(got - want) <= c.absolute + c.relative * std::abs(want);
}

// EXPECTs each result within the row's tolerance of the reference.
void ExpectNumbers(const OpCase& c, const std::vector<Doubles>& in,
                   const std::vector<HostArray>& results) {
  std::vector<TensorMeta> out_metas;
  for (const HostArray& result : results) out_metas.push_back(result.meta());
  const std::vector<TensorMeta> metas = MetasOf(c);
  const std::vector<Doubles> want = c.reference({in, metas, out_metas, c.attrs});
  ASSERT_EQ(want.size(), results.size());
  for (size_t k = 0; k < want.size(); ++k) {
    const Doubles got = results[k].ToDoubles();
    ASSERT_EQ(want[k].size(), got.size()) << "result " << k;
    int wrong = 0;
    for (size_t i = 0; i < got.size() && wrong < 5; ++i) {
      if (Close(got[i], want[k][i], c)) continue;
      ++wrong;
      ADD_FAILURE() << "result " << k << ", element " << i << ": " << got[i] << ", reference "
                    << want[k][i] << ", off by " << got[i] - want[k][i];
    }
  }
}

// EXPECTs equal bits; a NaN equals a NaN.
void ExpectSame(const Doubles& got, const Doubles& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::isnan(want[i])
                          ? std::isnan(got[i])
                          : got[i] == want[i] && std::signbit(got[i]) == std::signbit(want[i]);
    if (!same) {
      ADD_FAILURE() << what << ", element " << i << ": " << got[i] << " and " << want[i];
      return;
    }
  }
}

void ExpectSame(const std::vector<HostArray>& got, const std::vector<HostArray>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) {
    ExpectSame(got[k].ToDoubles(), want[k].ToDoubles(), absl::StrCat(what, ", result ", k));
  }
}

class OpSweep : public ::testing::TestWithParam<size_t> {
 protected:
  const OpCase& row() const { return AllCases()[GetParam()]; }
  std::vector<HostArray> Run(const OpCase& c, const std::vector<ArrayRef>& in,
                             const std::string& candidate, int threads) {
    StatusOr<std::vector<HostArray>> results =
        RunKernel(OpOf(c), in, c.attrs, {candidate, Pool(threads), {.seed = 5, .step = 3}});
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : std::vector<HostArray>();
  }
};

TEST_P(OpSweep, Kernel_AnyThreads_MatchesReference) {
  const std::vector<Doubles> elements = DrawInputs(row());
  std::vector<HostArray> inputs = MakeInputs(row(), elements);
  for (const std::string& candidate : Candidates(row(), Refs(&inputs))) {
    SCOPED_TRACE(candidate);
    const std::vector<HostArray> one = Run(row(), Refs(&inputs), candidate, 1);
    if (row().reference != nullptr) ExpectNumbers(row(), elements, one);
    ExpectSame(Run(row(), Refs(&inputs), candidate, 3), one, "three threads and one");
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    ExpectSame(inputs[k].ToDoubles(), elements[k], absl::StrCat("input ", k, " afterwards"));
  }
}

TEST_P(OpSweep, Kernel_StridedInputs_SameBits) {
  if (!OpOf(row()).strided_inputs || row().inputs.empty()) return;
  std::vector<HostArray> inputs = MakeInputs(row(), DrawInputs(row()));
  std::vector<HostArray> strided;
  for (const HostArray& input : inputs) strided.push_back(input.Strided());
  for (const std::string& candidate : Candidates(row(), Refs(&strided))) {
    ExpectSame(Run(row(), Refs(&strided), candidate, 1), Run(row(), Refs(&inputs), candidate, 1),
               "strided and contiguous");
  }
}

TEST_P(OpSweep, Kernel_InF64_MatchesReference) {
  const OpCase wide = Widened(row());
  const StatusOr<std::vector<TensorMeta>> out = InferOp(OpOf(wide), MetasOf(wide), wide.attrs);
  const bool has_f64 = out.ok() && !wide.inputs.empty() && out->at(0).dtype == DType::kF64;
  if (!has_f64 || wide.reference == nullptr || MetasOf(wide) == MetasOf(row())) return;
  for (const OpInput& input : row().inputs) {
    // Such numbers are chosen for what FP32 does with them.
    for (double v : input.values) {
      if (std::isnan(v) || std::isinf(v)) return;
    }
  }
  const std::vector<Doubles> elements = DrawInputs(wide);
  std::vector<HostArray> inputs = MakeInputs(wide, elements);
  ExpectNumbers(wide, elements, Run(wide, Refs(&inputs), "", 1));
}

// By the op's labels, how many dimensions each operand has behind the leading ones that it shares
// with the results; -1 where it shares none.
std::vector<int> TrailingDims(const OpDef& op, size_t inputs) {
  if (op.labels == "*") return std::vector<int>(inputs, 0);
  const std::vector<std::string> sides = absl::StrSplit(op.labels, "->");
  std::vector<int> trailing(inputs, -1);
  if (sides.size() != 2) return trailing;
  for (const std::string& result : std::vector<std::string>(absl::StrSplit(sides[1], ','))) {
    if (result.empty() || result[0] != '.') return trailing;
  }
  const std::vector<std::string> operands = absl::StrSplit(sides[0], ',');
  for (size_t k = 0; k < inputs && k < operands.size(); ++k) {
    const bool leads = !operands[k].empty() && operands[k][0] == '.';
    if (leads) trailing[k] = static_cast<int>(operands[k].size()) - 1;
  }
  return trailing;
}

TEST_P(OpSweep, Kernel_RowsAlone_SameBits) {
  const OpDef& op = OpOf(row());
  std::vector<HostArray> inputs = MakeInputs(row(), DrawInputs(row()));
  if (op.random || op.alias != Alias::kNone || inputs.empty() || !row().rows_independent) return;
  const std::vector<int> trailing = TrailingDims(op, inputs.size());
  int64_t rows = -1;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Shape& shape = inputs[k].meta().shape;
    if (op.labels == "*" && shape != inputs[0].meta().shape) return;  // broadcast
    if (trailing[k] < 0) continue;
    if (shape.rank() <= trailing[k]) return;
    rows = shape.dim(0);
  }
  if (rows < 2) return;
  const std::vector<HostArray> whole = Run(row(), Refs(&inputs), "", 1);
  int64_t begin = 0;
  for (const int64_t end : {int64_t{1}, rows}) {
    std::vector<ArrayRef> part;
    for (size_t k = 0; k < inputs.size(); ++k) {
      part.push_back(trailing[k] >= 0 ? inputs[k].Rows(begin, end) : inputs[k].ref());
    }
    const std::vector<HostArray> got = Run(row(), part, "", 1);
    for (size_t k = 0; k < got.size(); ++k) {
      HostArray copy = whole[k];
      ExpectSame(got[k].ToDoubles(), ToDoubles(copy.Rows(begin, end)),
                 absl::StrCat("rows from ", begin, " on, result ", k));
    }
    begin = end;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpSweep, ::testing::Range(size_t{0}, AllCases().size()),
                         [](const auto& info) { return NameOf(AllCases()[info.param]); });

}  // namespace
}  // namespace weft::testing
