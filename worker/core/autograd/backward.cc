#include "worker/core/autograd/backward.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "fabric/opset/grad_helpers.h"

namespace weft {
namespace {

// All nodes that `root` depends on, itself too, in the order of recording.
std::vector<GradNode*> Collect(GradNode* root) {
  std::vector<GradNode*> nodes = {root};
  absl::flat_hash_set<GradNode*> seen = {root};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const TapeLink& edge : nodes[i]->edges) {
      if (edge.node && seen.insert(edge.node.get()).second) nodes.push_back(edge.node.get());
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const GradNode* a, const GradNode* b) { return a->sequence < b->sequence; });
  return nodes;
}

// One pass over the tape. Holds the gradients that have arrived and not been used yet.
class Pass {
 public:
  Pass(Emitter& e, bool keep) : e_(e), keep_(keep) {}

  // Only ways to `targets` are followed; null: to all leaves.
  Status Run(const TapeLink& root, Value seed, const std::vector<TapeLink>* targets);

  // The gradient that arrived at a target or, without targets, at a leaf.
  Value Take(const TapeLink& link) {
    const auto it = arrived_.find(link.node.get());
    return it == arrived_.end() ? Value() : it->second[link.output];
  }
  const std::vector<GradNode*>& nodes() const { return nodes_; }

 private:
  Status Prepare(const std::vector<TapeLink>* targets);
  Status Check(const GradNode& node) const;
  Status Step(GradNode& node);
  void Release(GradNode& node);
  Status Route(GradNode& node, const Values& grads, const std::vector<bool>& need);
  Status Add(const TapeLink& to, const Value& grad);

  Emitter& e_;
  const bool keep_;
  std::vector<GradNode*> nodes_;
  absl::flat_hash_set<const GradNode*> useful_;   // on a way to a target
  absl::flat_hash_set<const GradNode*> targets_;  // their gradients stay in arrived_
  absl::flat_hash_map<const GradNode*, Values> arrived_;
};

Status Pass::Check(const GradNode& node) const {
  if (!node.op->grad) {
    return absl::UnimplementedError(absl::StrCat(
        node.op->name, ": has no gradient rule",
        IsGradientKernel(*node.op) ? ", so there is no second derivative through it" : "",
        "; detach its result, or build it from ops that have one"));
  }
  if (node.released) {
    return FailedPrecondition(node.op->name,
                              ": backward has been through it and let its saved values go; "
                              "ask the first pass to keep them");
  }
  const auto check = [&node](const std::vector<SavedValue>& saved, const char* what) -> Status {
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!saved[i].tensor.valid()) continue;
      const uint64_t now = saved[i].tensor.storage()->version();
      if (now == saved[i].version) continue;
      return FailedPrecondition(node.op->name, ": its gradient needs ", what, " ", i, ", ",
                                ToString(saved[i].tensor.meta()),
                                ", which has been overwritten in place (version ", saved[i].version,
                                " when recorded, ", now, " now); write to a copy instead");
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(check(node.saved_in, "input"));
  return check(node.saved_out, "result");
}

Status Pass::Prepare(const std::vector<TapeLink>* targets) {
  if (targets != nullptr) {
    for (const TapeLink& t : *targets) targets_.insert(t.node.get());
  }
  for (const GradNode* node : nodes_) {
    bool useful = targets == nullptr ? node->leaf() : targets_.contains(node);
    bool passes = false;  // gradients go on from here
    for (const TapeLink& edge : node->edges) {
      passes |= edge.node && useful_.contains(edge.node.get());
    }
    if (passes) RETURN_IF_ERROR(Check(*node));
    if (useful || passes) useful_.insert(node);
  }
  return absl::OkStatus();
}

// Whether a cast made the value out of an f32 one, so that its gradient may be f32 though it is
// bf16.
bool TakesFullGradient(const TapeLink& link) {
  const GradNode& node = *link.node;
  return !node.leaf() && node.op->name == "cast" && node.in_metas[0].dtype == DType::kF32 &&
         node.out_metas[0].dtype == DType::kBF16;
}

// The value that a rule sees: a saved one with its place on the tape, or, where the rule was found
// not to name it, metadata alone.
Value Restore(const SavedValue& saved, const TensorMeta& meta, const TapeLink& link) {
  if (!saved.tensor.valid()) return Value(std::make_shared<ValueRep>(meta));
  if (!link.node) return saved.tensor;
  Tensor tensor = saved.tensor.Detached();
  tensor.rep()->link() = link;
  return tensor;
}

Status Pass::Step(GradNode& node) {
  const auto it = arrived_.find(&node);
  if (it == arrived_.end()) return absl::OkStatus();
  const Values d = it->second;
  if (!targets_.contains(&node)) arrived_.erase(it);
  Values in, out;
  std::vector<bool> need;
  for (size_t i = 0; i < node.edges.size(); ++i) {
    in.push_back(Restore(node.saved_in[i], node.in_metas[i], node.edges[i]));
    need.push_back(node.edges[i].node && useful_.contains(node.edges[i].node.get()));
  }
  for (size_t i = 0; i < node.out_metas.size(); ++i) {
    const TapeLink link = IsFloat(node.out_metas[i].dtype)
                              ? TapeLink{node.shared_from_this(), static_cast<int>(i)}
                              : TapeLink{};
    out.push_back(Restore(node.saved_out[i], node.out_metas[i], link));
  }
  const Values grads = node.op->grad({e_, in, out, d, node.attrs, need});
  if (!e_.status().ok()) {
    return Annotate(e_.status(), absl::StrCat("gradient of ", node.op->name));
  }
  RETURN_IF_ERROR(Route(node, grads, need));
  if (!keep_) Release(node);
  return absl::OkStatus();
}

// What needed nothing may be gone through again.
void Pass::Release(GradNode& node) {
  const auto drop = [&node](std::vector<SavedValue>& saved) {
    for (SavedValue& s : saved) {
      node.released |= s.tensor.valid();
      s = {};
    }
  };
  drop(node.saved_in);
  drop(node.saved_out);
}

Status Pass::Route(GradNode& node, const Values& grads, const std::vector<bool>& need) {
  for (size_t i = 0; i < grads.size() && i < need.size(); ++i) {
    if (!need[i] || !grads[i].valid()) continue;
    const TensorMeta &given = grads[i].meta(), &wanted = node.in_metas[i];
    const bool full = given.dtype == DType::kF32 && wanted.dtype == DType::kBF16;
    if (given.shape != wanted.shape || (given.dtype != wanted.dtype && !full)) {
      return Internal("gradient of ", node.op->name, ": input ", i, " is ", ToString(wanted),
                      " but the rule gives ", ToString(given));
    }
    if (!Tensor::From(grads[i]).valid()) {
      return Internal("gradient of ", node.op->name,
                      ": the rule names a value that it did not name on "
                      "metadata; what it names may depend on shapes and attributes only");
    }
    const bool narrowed = full && !TakesFullGradient(node.edges[i]);
    RETURN_IF_ERROR(Add(node.edges[i], narrowed ? CastTo(e_, grads[i], DType::kBF16) : grads[i]));
  }
  return absl::OkStatus();
}

Status Pass::Add(const TapeLink& to, const Value& grad) {
  Values& slots = arrived_[to.node.get()];
  slots.resize(std::max(slots.size(), to.node->leaf() ? size_t{1} : to.node->out_metas.size()));
  Value& slot = slots[to.output];
  slot = slot.valid() ? weft::Add(e_, slot, grad) : grad;
  return e_.status();
}

Status Pass::Run(const TapeLink& root, Value seed, const std::vector<TapeLink>* targets) {
  nodes_ = Collect(root.node.get());
  RETURN_IF_ERROR(Prepare(targets));
  Values& slots = arrived_[root.node.get()];
  slots.resize(root.node->leaf() ? 1 : root.node->out_metas.size());
  slots[root.output] = std::move(seed);
  for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
    GradNode& node = **it;
    if (node.leaf() || !useful_.contains(&node)) continue;
    bool passes = false;
    for (const TapeLink& edge : node.edges)
      passes |= edge.node && useful_.contains(edge.node.get());
    if (passes) RETURN_IF_ERROR(Step(node));
  }
  return absl::OkStatus();
}

StatusOr<Value> SeedFor(Emitter& e, const Tensor& loss, const Tensor& seed) {
  RETURN_IF_ERROR(e.status());
  if (!Tracked(loss)) {
    return FailedPrecondition(
        "nothing leads back from the loss: no input of it requires a gradient, or it was computed "
        "in a "
        "scope without gradients");
  }
  if (seed.valid()) {
    if (seed.meta() == loss.meta()) return seed.value();
    return InvalidArgument("the seed is ", ToString(seed.meta()), ", the loss ",
                           ToString(loss.meta()));
  }
  if (loss.meta().elements() != 1) {
    return InvalidArgument("the loss is ", ToString(loss.meta()),
                           "; without a seed it must have one element");
  }
  const Shape& shape = loss.shape();
  Value ones = e.Emit("fill", {},
                      {{"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                       {"value", 1.0},
                       {"dtype", std::string(NameOf(loss.dtype()))}});
  RETURN_IF_ERROR(e.status());
  return ones;
}

}  // namespace

Status Backward(Emitter& e, const Tensor& loss, const BackwardOptions& options,
                const Tensor& seed) {
  NoGradScope no_grad;
  ASSIGN_OR_RETURN(Value start, SeedFor(e, loss, seed));
  Pass pass(e, options.keep);
  RETURN_IF_ERROR(pass.Run(loss.rep()->link(), std::move(start), nullptr));
  std::vector<std::pair<GradNode*, Tensor>> sums;
  for (GradNode* node : pass.nodes()) {
    if (!node->leaf()) continue;
    const Value grad = pass.Take({node->shared_from_this(), 0});
    if (!grad.valid()) continue;
    sums.emplace_back(node,
                      Tensor::From(node->grad.valid() ? weft::Add(e, node->grad, grad) : grad));
  }
  RETURN_IF_ERROR(e.status());
  for (auto& [node, sum] : sums) node->grad = sum.Detached();
  return absl::OkStatus();
}

StatusOr<std::vector<Tensor>> Gradients(Emitter& e, const Tensor& loss,
                                        const std::vector<Tensor>& inputs,
                                        const GradientOptions& options, const Tensor& seed) {
  GradModeScope mode(options.create_graph);
  ASSIGN_OR_RETURN(Value start, SeedFor(e, loss, seed));
  std::vector<TapeLink> targets;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!Tracked(inputs[i])) {
      return FailedPrecondition("input ", i, " is not on the tape: mark it with RequireGrad first");
    }
    targets.push_back(inputs[i].rep()->link());
  }
  Pass pass(e, options.keep || options.create_graph);
  RETURN_IF_ERROR(pass.Run(loss.rep()->link(), std::move(start), &targets));
  std::vector<Tensor> grads;
  for (size_t i = 0; i < targets.size(); ++i) {
    grads.push_back(Tensor::From(CastTo(e, pass.Take(targets[i]), inputs[i].dtype())));
  }
  RETURN_IF_ERROR(e.status());
  return grads;
}

}  // namespace weft
