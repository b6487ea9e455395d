#include "worker/core/autograd/save_plan.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace weft {
namespace {

Value MetaValue(const TensorMeta& meta) { return Value(std::make_shared<ValueRep>(meta)); }

// Infers shapes, and notes every value that is handed to it.
class NotingEmitter final : public Emitter {
 public:
  explicit NotingEmitter(const OpSet& ops) : ops_(ops) {}

  Values EmitAll(absl::string_view name, const Values& inputs, const Attrs& attrs) override {
    const StatusOr<const OpDef*> op = ops_.Get(name);
    if (!op.ok()) {
      Fail(op.status());
      return {};
    }
    Values results((*op)->outputs.size());
    std::vector<TensorMeta> metas;
    for (const Value& v : inputs) {
      if (!v.valid()) return results;
      Note(v);
      metas.push_back(v.meta());
    }
    const StatusOr<std::vector<TensorMeta>> out = InferOp(**op, metas, attrs);
    if (!out.ok()) {
      Fail(out.status());
      return results;
    }
    results.clear();
    for (const TensorMeta& m : *out) results.push_back(MetaValue(m));
    return results;
  }

  void Note(const Value& v) { noted_.insert(v.rep().get()); }
  bool Noted(const Value& v) const { return noted_.contains(v.rep().get()); }

 private:
  const OpSet& ops_;
  absl::flat_hash_set<const ValueRep*> noted_;
};

Values MetaValues(const std::vector<TensorMeta>& metas) {
  Values values;
  for (const TensorMeta& m : metas) values.push_back(MetaValue(m));
  return values;
}

}  // namespace

SavePlan DeriveSavePlan(const OpSet& ops, const OpDef& op, const std::vector<TensorMeta>& in,
                        const std::vector<TensorMeta>& out, const Attrs& attrs,
                        const std::vector<bool>& need) {
  SavePlan plan{std::vector<bool>(in.size(), false), std::vector<bool>(out.size(), false)};
  if (!op.grad) return plan;
  std::vector<size_t> floats;
  for (size_t i = 0; i < out.size(); ++i) {
    if (IsFloat(out[i].dtype)) floats.push_back(i);
  }
  const size_t trials = floats.size() > 1 ? floats.size() + 1 : 1;
  for (size_t trial = 0; trial < trials; ++trial) {
    NotingEmitter e(ops);
    const Values ins = MetaValues(in), outs = MetaValues(out);
    Values d(out.size());
    for (size_t k = 0; k < floats.size(); ++k) {
      if (trial == 0 || trial == k + 1) d[floats[k]] = MetaValue(out[floats[k]]);
    }
    const Values grads = op.grad({e, ins, outs, d, attrs, need});
    for (const Value& g : grads) {
      if (g.valid()) e.Note(g);
    }
    if (!e.status().ok()) {
      return {std::vector<bool>(in.size(), true), std::vector<bool>(out.size(), true)};
    }
    for (size_t i = 0; i < in.size(); ++i) plan.in[i] = plan.in[i] || e.Noted(ins[i]);
    for (size_t i = 0; i < out.size(); ++i) plan.out[i] = plan.out[i] || e.Noted(outs[i]);
  }
  return plan;
}

}  // namespace weft
