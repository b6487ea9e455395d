#include "fabric/graph/backward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/graph/builder.h"
#include "fabric/graph/precision.h"
#include "fabric/opset/grad_helpers.h"

namespace weft {
namespace {

// By value: whether it is a narrowed f32 value, whose gradient stays f32 where it comes as f32.
std::vector<bool> TakesFullGradient(const Graph& graph) {
  std::vector<bool> takes(graph.values.size(), false);
  for (const GraphNode& node : graph.nodes) {
    if (IsNarrowingCast(graph, node)) takes[node.out[0]] = true;
  }
  return takes;
}

// By value: whether a change of some parameter changes it smoothly.
std::vector<bool> DependsOnParameter(const OpSet& ops, const Graph& graph) {
  std::vector<bool> depends(graph.values.size(), false);
  for (const GraphParameter& p : graph.parameters) depends[p.value] = true;
  for (const GraphNode& node : graph.nodes) {
    if (!ops.Find(node.op)->differentiable) continue;
    if (std::none_of(node.in.begin(), node.in.end(), [&](ValueId v) { return depends[v]; })) {
      continue;
    }
    for (ValueId v : node.out) depends[v] = IsFloat(graph.values[v].dtype);
  }
  return depends;
}

class Differentiator {
 public:
  Differentiator(const OpSet& ops, Graph graph)
      : ops_(ops),
        depends_(DependsOnParameter(ops, graph)),
        takes_full_(TakesFullGradient(graph)),
        gradient_(graph.values.size()),
        forward_nodes_(graph.nodes.size()),
        builder_(ops, std::move(graph)) {}

  Status Run(ValueId loss) {
    const GraphBuilder::Scope scope(builder_, "grad");
    gradient_[loss] =
        builder_.Emit("fill", {}, {{"shape", std::vector<int64_t>{}}, {"value", 1.0}});
    for (size_t i = forward_nodes_; i-- > 0;) {
      // A copy: the builder appends to the list that it is in.
      const GraphNode node = builder_.graph().nodes[i];
      RETURN_IF_ERROR(Visit(node));
      RETURN_IF_ERROR(
          Annotate(builder_.status(), absl::StrCat("gradient of node '", node.name, "'")));
    }
    return absl::OkStatus();
  }

  StatusOr<Graph> Finish() {
    const std::vector<GraphParameter> parameters = builder_.graph().parameters;
    for (const GraphParameter& p : parameters) {
      if (!gradient_[p.value].valid()) {
        return InvalidArgument("parameter '", p.name,
                               "' does not influence loss_sum; leave it out");
      }
      builder_.Output(GradientName(p.name), gradient_[p.value]);
    }
    return builder_.Finish();
  }

 private:
  Status Visit(const GraphNode& node) {
    Values d;
    bool reached = false;
    for (ValueId v : node.out) {
      d.push_back(gradient_[v]);
      reached = reached || d.back().valid();
    }
    std::vector<bool> need;
    for (ValueId v : node.in) need.push_back(depends_[v]);
    const OpDef& op = *ops_.Find(node.op);
    if (!reached || !op.differentiable ||
        std::none_of(need.begin(), need.end(), [](bool n) { return n; })) {
      return absl::OkStatus();
    }
    if (op.grad == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("node '", node.name, "': op '", op.name, "' has no gradient"));
    }
    Values in, out;
    for (ValueId v : node.in) in.push_back(builder_.At(v));
    for (ValueId v : node.out) out.push_back(builder_.At(v));
    const GraphBuilder::Scope scope(builder_, node.name);
    const Values gradients = op.grad({builder_, in, out, d, node.attrs, need});
    for (size_t i = 0; i < node.in.size() && i < gradients.size(); ++i) {
      if (need[i] && gradients[i].valid()) RETURN_IF_ERROR(Accumulate(node, i, gradients[i]));
    }
    return absl::OkStatus();
  }

  Status Accumulate(const GraphNode& node, size_t input, Value gradient) {
    const ValueId v = node.in[input];
    // A copy: the builder appends to the list that it is in.
    const TensorMeta meta = builder_.graph().values[v];
    const bool full = meta.dtype == DType::kBF16 && gradient.dtype() == DType::kF32;
    if (gradient.shape() != meta.shape || (gradient.dtype() != meta.dtype && !full)) {
      return Internal("op '", node.op, "': the gradient of input ", input, " is ",
                      ToString(gradient.meta()), ", the input is ", ToString(meta));
    }
    if (full && !takes_full_[v]) gradient = CastTo(builder_, gradient, DType::kBF16);
    Value& sum = gradient_[v];
    sum = sum.valid() ? Add(builder_, sum, gradient) : gradient;
    return absl::OkStatus();
  }

  const OpSet& ops_;
  const std::vector<bool> depends_;     // by forward ValueId
  const std::vector<bool> takes_full_;  // by forward ValueId
  Values gradient_;                     // by forward ValueId; invalid: none so far
  const size_t forward_nodes_;
  GraphBuilder builder_;
};

}  // namespace

std::string GradientName(const std::string& parameter) {
  return absl::StrCat("d(", parameter, ")");
}

StatusOr<Graph> AppendBackward(const OpSet& ops, Graph graph) {
  const ValueId loss = graph.FindOutput("loss_sum");
  if (loss < 0) return InvalidArgument("the graph has no output 'loss_sum'");
  Differentiator differentiator(ops, std::move(graph));
  RETURN_IF_ERROR(differentiator.Run(loss));
  return differentiator.Finish();
}

}  // namespace weft
