// Random numbers: a pure function of (seed, step, `key`, global element), so that bits do not
// depend on who draws them. A local row r of dimension 0 is the batch's row first_row + r.
#include <string>
#include <utility>
#include <vector>

#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

const AttrDef kKey = {"key", AttrType::kInt, true, "which stream of random numbers"};

OpDef Draw(std::string name, std::string doc, std::vector<AttrDef> attrs) {
  OpDef op{.name = std::move(name), .doc = std::move(doc), .inputs = {}};
  op.attrs = std::move(attrs);
  op.attrs.push_back({"shape", AttrType::kInts, true, "the result's shape"});
  op.attrs.push_back(kKey);
  op.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    ASSIGN_OR_RETURN(const Shape shape, CheckedShape(DType::kF32, a.attrs.GetInts("shape")));
    return Metas{{DType::kF32, shape}};
  };
  op.differentiable = false;
  op.random = true;
  op.flops = [](const CostArgs& c) { return 10 * c.out[0].elements(); };
  return op;
}

}  // namespace

void AddRandomOps(OpSet* set) {
  set->Add(Draw("uniform", "y = low + (high - low) * u, u uniform in [0, 1)",
                {{"low", AttrType::kFloat, true, "lower end"},
                 {"high", AttrType::kFloat, true, "upper end"}}));
  set->Add(Draw("normal", "y = std * z, z standard normal by Box and Muller's method",
                {{"std", AttrType::kFloat, true, "standard deviation"}}));

  OpDef dropout{.name = "dropout",
                .doc = "y = x / (1 - p) where a draw u in [0, 1) is at least p, else 0",
                .inputs = {"x"},
                .labels = "*"};
  dropout.attrs = {{"p", AttrType::kFloat, true, "share of zeros, 0 <= p < 1"}, kKey};
  dropout.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckNarrow(a.in[0], "x"));
    const double p = a.attrs.GetFloat("p");
    if (!(p >= 0 && p < 1)) return InvalidArgument("p is ", p, ", wants 0 <= p < 1");
    return Metas{a.in[0]};
  };
  dropout.grad = [](const GradArgs& g) { return Values{g.e.Emit("dropout", {g.d[0]}, g.attrs)}; };
  dropout.precision = Precision::kFollow;
  dropout.random = true;
  dropout.flops = [](const CostArgs& c) { return 10 * c.in[0].elements(); };
  set->Add(std::move(dropout));
}

}  // namespace weft
