#include "worker/core/autograd/tape.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"

#include "worker/core/autograd/call_key.h"

namespace weft {
namespace {

constexpr size_t kPlansMost = 4096;  // shapes may vary without end; the cache starts over then

SavedValue Save(const Tensor& tensor, uint64_t version) { return {tensor.Detached(), version}; }

}  // namespace

Status RequireGrad(const Tensor& tensor) {
  if (!tensor.valid() || !IsFloat(tensor.dtype())) {
    return InvalidArgument("only tensors of a float dtype have gradients, not ",
                           tensor.valid() ? ToString(tensor.meta()) : "an invalid one");
  }
  TapeLink& link = tensor.rep()->link();
  if (link.node && !link.node->leaf()) {
    return FailedPrecondition("the tensor is the result of ", link.node->op->name,
                              " on the tape; only leaves are marked, so detach it first");
  }
  if (!link.node) link.node = std::make_shared<GradNode>();
  return absl::OkStatus();
}

bool Tracked(const Tensor& tensor) {
  return tensor.valid() && tensor.rep()->link().node != nullptr;
}

Tensor GradOf(const Tensor& leaf) {
  return Tracked(leaf) ? leaf.rep()->link().node->grad : Tensor();
}

void ClearGrad(const Tensor& leaf) {
  if (Tracked(leaf)) leaf.rep()->link().node->grad = Tensor();
}

bool IsGradientKernel(const OpDef& op) {
  return !op.differentiable && absl::EndsWith(op.name, "_grad");
}

bool Tape::Records(const OpDef& op, const std::vector<Tensor>& in) {
  if (!GradEnabled() || (!op.differentiable && !IsGradientKernel(op))) return false;
  for (const Tensor& t : in) {
    if (Tracked(t)) return true;
  }
  return false;
}

Status Tape::CheckInputs(const OpDef& op, const std::vector<Tensor>& in, bool records) {
  if (!GradEnabled() || !op.differentiable) return absl::OkStatus();
  for (size_t i = 0; i < in.size(); ++i) {
    const Storage& storage = *in[i].storage();
    const uint64_t made = in[i].rep()->version(), now = storage.version();
    const TapeLink& link = in[i].rep()->link();
    const bool result = link.node && !link.node->leaf();
    if ((result && made != now) || made < storage.recorded_version()) {
      return FailedPrecondition(
          op.name, ": input ", i,
          result ? absl::StrCat(", a result of ", link.node->op->name, ",") : "",
          " has been overwritten in place since (version ", made, " then, ", now,
          " now); use what the op that wrote it returned, or write to a copy");
    }
    const bool written = op.alias == Alias::kInPlace && static_cast<int>(i) < op.alias_count;
    if (records && written && link.node && link.node->leaf()) {
      return FailedPrecondition(
          op.name, ": input ", i,
          " is a leaf that requires a gradient and would be overwritten; write to a "
          "copy, or in a scope without gradients");
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> Tape::Versions(const std::vector<Tensor>& tensors) {
  std::vector<uint64_t> versions;
  versions.reserve(tensors.size());
  for (const Tensor& t : tensors) versions.push_back(t.storage()->version());
  return versions;
}

const SavePlan& Tape::PlanFor(const OpDef& op, const GradNode& node,
                              const std::vector<bool>& need) {
  std::string key = CallKey(op, node.in_metas, node.attrs);
  for (const bool n : need) key += n ? '1' : '0';
  const auto it = plans_.find(key);
  if (it != plans_.end()) return it->second;
  if (plans_.size() >= kPlansMost) plans_.clear();
  SavePlan plan = DeriveSavePlan(ops_, op, node.in_metas, node.out_metas, node.attrs, need);
  return plans_.emplace(std::move(key), std::move(plan)).first->second;
}

void Tape::Record(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& in,
                  const std::vector<uint64_t>& in_versions, const std::vector<Tensor>& out) {
  auto node = std::make_shared<GradNode>();
  node->op = &op;
  node->attrs = attrs;
  std::vector<bool> need;
  for (const Tensor& t : in) {
    node->edges.push_back(t.rep()->link());
    node->in_metas.push_back(t.meta());
    need.push_back(Tracked(t));
  }
  for (const Tensor& t : out) node->out_metas.push_back(t.meta());
  const SavePlan& plan = PlanFor(op, *node, need);
  node->saved_in.resize(in.size());
  node->saved_out.resize(out.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (plan.in[i]) node->saved_in[i] = Save(in[i], in_versions[i]);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (plan.out[i]) node->saved_out[i] = Save(out[i], out[i].storage()->version());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (op.alias == Alias::kInPlace && static_cast<int>(i) < op.alias_count) {
      out[i].storage()->MarkRecordedWrite();
    }
    if (IsFloat(out[i].dtype())) out[i].rep()->link() = {node, static_cast<int>(i)};
  }
}

}  // namespace weft
