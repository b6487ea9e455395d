// The rows of every family's cases.cc on the GPU, in f32, f64 and bf16: numbers against the
// reference, the same bits launched twice and from a graph, for any strides, for every candidate.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/gpu/device_call.h"
#include "tests/ops/case_data.h"

namespace weft::testing {
namespace {

const OpDef& OpOf(const OpCase& c) { return **BuiltinOpSet().Get(c.op); }

std::vector<ArrayRef> Refs(std::vector<HostArray>* arrays) {
  std::vector<ArrayRef> refs;
  for (HostArray& array : *arrays) refs.push_back(array.ref());
  return refs;
}

// The row with bf16 operands where the op takes them, its tolerance that of one rounding of
// operands and results; empty where it does not.
std::vector<OpCase> Narrowed(const OpCase& c) {
  const OpDef& op = OpOf(c);
  if (op.precision == Precision::kFull) return {};
  OpCase narrow = c;
  bool changed = false;
  for (size_t i = 0; i < narrow.inputs.size(); ++i) {
    OpInput& input = narrow.inputs[i];
    const std::string& name = op.inputs[std::min(i, op.inputs.size() - 1)];
    const bool full =
        std::find(op.full_inputs.begin(), op.full_inputs.end(), name) != op.full_inputs.end();
    if (input.meta.dtype != DType::kF32 || full) continue;
    input.meta.dtype = DType::kBF16;
    changed = true;
  }
  if (!changed) return {};
  narrow.relative = std::max(c.relative, 1.0 / 64);
  narrow.absolute = std::max(c.absolute, 1.0 / 64);
  return {narrow};
}

enum class Type { kF32, kF64, kBF16 };
constexpr const char* kTypeNames[] = {"f32", "f64", "bf16"};

struct TypedRow {
  OpCase row;
  Type type;
};

void AppendTypes(const OpCase& row, std::vector<TypedRow>* rows) {
  const OpDef& op = OpOf(row);
  if (op.alias == Alias::kReshape || op.alias == Alias::kStrided || op.expand != nullptr) return;
  rows->push_back({row, Type::kF32});
  for (const OpInput& input : row.inputs) {
    // Such numbers are chosen for what FP32 does with them.
    for (double v : input.values) {
      if (std::isnan(v) || std::isinf(v)) return;
    }
  }
  for (OpCase& narrow : Narrowed(row)) rows->push_back({std::move(narrow), Type::kBF16});
  const OpCase wide = Widened(row);
  const auto out = InferOp(op, MetasOf(wide), wide.attrs);
  const bool has_f64 = out.ok() && !wide.inputs.empty() && out->at(0).dtype == DType::kF64;
  if (has_f64 && MetasOf(wide) != MetasOf(row)) rows->push_back({wide, Type::kF64});
}

const std::vector<TypedRow>& Rows() {
  static const auto* const rows = [] {
    auto* all = new std::vector<TypedRow>;
    for (const OpCase& row : AllCases()) AppendTypes(row, all);
    return all;
  }();
  return *rows;
}

class GpuSweep : public ::testing::TestWithParam<size_t> {};

bool Close(double got, double want, const OpCase& c, double scale) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return want == got;
  return std::abs(got - want) <= c.absolute * scale + c.relative * std::abs(want);
}

void ExpectNumbers(const OpCase& c, Type type, const std::vector<Doubles>& in,
                   const std::vector<HostArray>& results) {
  std::vector<TensorMeta> out_metas;
  for (const HostArray& result : results) out_metas.push_back(result.meta());
  const std::vector<TensorMeta> metas = MetasOf(c);
  const std::vector<Doubles> want = c.reference({in, metas, out_metas, c.attrs});
  ASSERT_EQ(want.size(), results.size());
  for (size_t k = 0; k < want.size(); ++k) {
    const Doubles got = results[k].ToDoubles();
    ASSERT_EQ(want[k].size(), got.size()) << "result " << k;
    // bf16 errors are relative to the row's greatest entries, which are what cancels in a sum.
    double greatest = 0;
    for (double w : want[k]) {
      if (std::isfinite(w)) greatest = std::max(greatest, std::abs(w));
    }
    const double scale = type == Type::kBF16 ? std::max(1.0, greatest) : 1.0;
    int wrong = 0;
    for (size_t i = 0; i < got.size() && wrong < 3; ++i) {
      if (Close(got[i], want[k][i], c, scale)) continue;
      ++wrong;
      ADD_FAILURE() << "result " << k << ", element " << i << " of " << got.size() << ": " << got[i]
                    << ", reference " << want[k][i];
    }
  }
}

// EXPECTs equal bits.
void ExpectSame(std::vector<HostArray> got, std::vector<HostArray> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) {
    const ArrayRef a = got[k].ref(), b = want[k].ref();
    const size_t bytes = static_cast<size_t>(a.elements()) * SizeOf(a.dtype);
    if (std::memcmp(a.data, b.data, bytes) != 0) ADD_FAILURE() << what << ", result " << k;
  }
}

std::vector<HostArray> OnGpu(const OpCase& c, const std::vector<ArrayRef>& in,
                             const std::string& candidate, DeviceCall::How how) {
  StatusOr<std::unique_ptr<DeviceCall>> call = DeviceCall::Make(OpOf(c), in, c.attrs, candidate);
  EXPECT_TRUE(call.ok()) << call.status();
  if (!call.ok()) return {};
  const Status launched = (*call)->Launch({.seed = 5, .step = 3}, how);
  EXPECT_TRUE(launched.ok()) << launched;
  StatusOr<std::vector<HostArray>> results = (*call)->Results();
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? *std::move(results) : std::vector<HostArray>();
}

TEST_P(GpuSweep, Kernel_EachCandidate_MatchesReferenceWithTheSameBitsEachTime) {
  const OpCase& c = Rows()[GetParam()].row;
  std::vector<HostArray> inputs = MakeInputs(c, DrawInputs(c));
  std::vector<Doubles> elements;
  for (const HostArray& input : inputs) elements.push_back(input.ToDoubles());
  const std::vector<ArrayRef> refs = Refs(&inputs);
  for (const std::string& candidate : DeviceCall::Candidates(OpOf(c), refs, c.attrs)) {
    SCOPED_TRACE(candidate);
    const auto once = OnGpu(c, refs, candidate, DeviceCall::How::kEager);
    if (once.empty()) return;
    if (c.reference != nullptr) ExpectNumbers(c, Rows()[GetParam()].type, elements, once);
    ExpectSame(OnGpu(c, refs, candidate, DeviceCall::How::kEager), once, "a second launch");
    ExpectSame(OnGpu(c, refs, candidate, DeviceCall::How::kCaptured), once, "from a graph");
  }
}

TEST_P(GpuSweep, Kernel_StridedOperands_SameBits) {
  const OpCase& c = Rows()[GetParam()].row;
  if (!OpOf(c).strided_inputs || c.inputs.empty()) GTEST_SKIP() << "takes contiguous operands";
  std::vector<HostArray> inputs = MakeInputs(c, DrawInputs(c));
  std::vector<HostArray> strided;
  for (const HostArray& input : inputs) strided.push_back(input.Strided());
  ExpectSame(OnGpu(c, Refs(&strided), "default", DeviceCall::How::kEager),
             OnGpu(c, Refs(&inputs), "default", DeviceCall::How::kEager), "strided operands");
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuSweep, ::testing::Range(size_t{0}, Rows().size()),
                         [](const auto& info) {
                           const TypedRow& row = Rows()[info.param];
                           return absl::StrCat(NameOf(row.row), "_",
                                               kTypeNames[static_cast<int>(row.type)]);
                         });

}  // namespace
}  // namespace weft::testing
