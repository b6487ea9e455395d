#include "worker/core/dispatch/eager.h"

#include <optional>
#include <utility>

#include "worker/core/autograd/call_key.h"

namespace weft {
namespace {

Values ToValues(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace

EagerEmitter::EagerEmitter(DispatchContext context, uint64_t seed)
    : dispatcher_(std::move(context)), tape_(*dispatcher_.context().ops) {
  step_.seed = seed;
}

Values EagerEmitter::EmitAll(absl::string_view name, const Values& inputs, const Attrs& attrs) {
  const StatusOr<const OpDef*> op = dispatcher_.context().ops->Get(name);
  if (!op.ok()) {
    Fail(op.status());
    return {};
  }
  const Values invalid((*op)->outputs.size());
  if (!status().ok()) return invalid;
  std::vector<Tensor> in;
  in.reserve(inputs.size());
  for (const Value& v : inputs) {
    if (!v.valid()) return invalid;
    in.push_back(Tensor::From(v));
    if (!in.back().valid()) {
      Fail(InvalidArgument(name, ": input ", in.size() - 1, " has a shape but no bytes here"));
      return invalid;
    }
  }
  StatusOr<std::vector<Tensor>> out = RunOp(**op, in, attrs);
  if (out.ok()) return ToValues(*out);
  Fail(out.status());
  return invalid;
}

StatusOr<std::vector<Tensor>> EagerEmitter::RunOp(const OpDef& op, const std::vector<Tensor>& in,
                                                  Attrs attrs) {
  if (op.random && !attrs.Has(kRandomKeyAttr)) attrs.Set(kRandomKeyAttr, next_key_++);
  const bool records = Tape::Records(op, in);
  RETURN_IF_ERROR(Tape::CheckInputs(op, in, records));
  if (op.expand) return Expand(op, in, attrs, records);
  const std::vector<uint64_t> versions = records ? Tape::Versions(in) : std::vector<uint64_t>();
  ASSIGN_OR_RETURN(std::vector<Tensor> out, dispatcher_.Run(op, in, attrs, step_));
  if (records) {
    tape_.Record(op, attrs, in, versions, out);
    return out;
  }
  if (op.alias == Alias::kInPlace) {
    // Without a record the results are the operands themselves: a leaf stays one.
    for (int i = 0; i < op.alias_count; ++i) out[i] = in[i];
  }
  return out;
}

StatusOr<std::vector<Tensor>> EagerEmitter::Expand(const OpDef& op, const std::vector<Tensor>& in,
                                                   const Attrs& attrs, bool records) {
  std::vector<TensorMeta> metas;
  for (const Tensor& t : in) metas.push_back(t.meta());
  ASSIGN_OR_RETURN(const std::vector<TensorMeta> expected, InferOp(op, metas, attrs));
  // A gradient rule of its own replaces those of the parts.
  const bool as_one = records && op.grad;
  const std::vector<uint64_t> versions = Tape::Versions(in);
  std::vector<Tensor> out;
  {
    std::optional<NoGradScope> no_grad;
    if (as_one || !op.differentiable) no_grad.emplace();
    for (const Value& v : op.expand(*this, ToValues(in), attrs)) out.push_back(Tensor::From(v));
  }
  if (!status().ok()) return Annotate(status(), op.name);
  bool fits = out.size() == expected.size();
  for (size_t i = 0; fits && i < out.size(); ++i) {
    fits = out[i].valid() && out[i].meta() == expected[i];
  }
  if (!fits) return Internal(op.name, ": its expansion does not give the results it infers");
  if (as_one) {
    // An expansion may hand an operand through: that handle keeps its own link.
    for (Tensor& t : out) t = t.Detached();
    tape_.Record(op, attrs, in, versions, out);
  }
  return out;
}

}  // namespace weft
