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

struct Call {
  const std::vector<TensorMeta>& in;
  const std::vector<TensorMeta>& out;
  const Attrs& attrs;
  const std::vector<bool>& need;
};

// Runs the rule with the gradients of the results `live` and adds what it names to `plan`. False:
// it failed.
bool Try(const OpSet& ops, const OpDef& op, const Call& call, const std::vector<size_t>& live,
         SavePlan& plan) {
  NotingEmitter e(ops);
  const Values ins = MetaValues(call.in), outs = MetaValues(call.out);
  Values d(outs.size());
  for (const size_t i : live) d[i] = MetaValue(call.out[i]);
  const Values grads = op.grad({e, ins, outs, d, call.attrs, call.need});
  if (!e.status().ok()) return false;
  for (const Value& g : grads) {
    if (g.valid()) e.Note(g);
  }
  for (size_t i = 0; i < ins.size(); ++i) plan.in[i] = plan.in[i] || e.Noted(ins[i]);
  for (size_t i = 0; i < outs.size(); ++i) plan.out[i] = plan.out[i] || e.Noted(outs[i]);
  return true;
}

}  // namespace

SavePlan DeriveSavePlan(const OpSet& ops, const OpDef& op, const std::vector<TensorMeta>& in,
                        const std::vector<TensorMeta>& out, const Attrs& attrs,
                        const std::vector<bool>& need) {
  SavePlan plan{std::vector<bool>(in.size(), false), std::vector<bool>(out.size(), false)};
  if (!op.grad) return plan;
  const Call call{in, out, attrs, need};
  // A rule may refuse the gradient of a result that has none; backward would get the same answer.
  std::vector<size_t> accepted;
  for (size_t i = 0; i < out.size(); ++i) {
    if (IsFloat(out[i].dtype) && Try(ops, op, call, {i}, plan)) accepted.push_back(i);
  }
  const bool together = accepted.size() < 2 || Try(ops, op, call, accepted, plan);
  if (!accepted.empty() && together) return plan;
  return {std::vector<bool>(in.size(), true), std::vector<bool>(out.size(), true)};
}

}  // namespace weft
