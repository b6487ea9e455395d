#include "tests/ops/case_data.h"

#include <utility>

#include "tests/support/seeded.h"

namespace weft::testing {

const OpCases& AllCases() {
  static const OpCases* const all = [] {
    auto* cases = new OpCases;
    const auto add = [cases](OpCases family) {
      for (OpCase& c : family) cases->push_back(std::move(c));
    };
    add(ElementwiseCases());
    add(ReduceCases());
    add(ViewCases());
    add(IndexCases());
    add(RandomCases());
    add(MatmulCases());
    add(NormCases());
    add(AttentionCases());
    add(LossCases());
    add(OptimCases());
    add(ImageCases());
    return cases;
  }();
  return *all;
}

std::string NameOf(const OpCase& c) { return c.op + "_" + c.name; }

std::vector<Doubles> DrawInputs(const OpCase& c) {
  std::vector<Doubles> drawn;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    const OpInput& input = c.inputs[k];
    SeededStream stream(1000 + k);
    Doubles elements = input.values;
    if (elements.empty()) {
      for (int64_t i = 0; i < input.meta.elements(); ++i) {
        if (IsFloat(input.meta.dtype)) {
          elements.push_back(stream.Uniform(input.low, input.high));
        } else {
          const int64_t low = static_cast<int64_t>(input.low);
          elements.push_back(low + stream.Below(static_cast<int64_t>(input.high) - low + 1));
        }
      }
    }
    drawn.push_back(HostArray(input.meta, elements).ToDoubles());
  }
  return drawn;
}

std::vector<HostArray> MakeInputs(const OpCase& c, const std::vector<Doubles>& elements) {
  std::vector<HostArray> arrays;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    arrays.emplace_back(c.inputs[k].meta, elements[k]);
  }
  return arrays;
}

std::vector<TensorMeta> MetasOf(const OpCase& c) {
  std::vector<TensorMeta> metas;
  for (const OpInput& input : c.inputs) metas.push_back(input.meta);
  return metas;
}

OpCase Widened(const OpCase& c) {
  OpCase wide = c;
  for (OpInput& input : wide.inputs) {
    if (input.meta.dtype == DType::kF32) input.meta.dtype = DType::kF64;
  }
  if (c.relative != 0) wide.relative = 1e-13;
  if (c.absolute != 0) wide.absolute = 1e-13 * (1 + c.absolute / 1e-6);
  return wide;
}

}  // namespace weft::testing
