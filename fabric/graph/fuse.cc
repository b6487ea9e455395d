#include "fabric/graph/fuse.h"

#include <string>
#include <utility>
#include <vector>

#include "fabric/base/check.h"

namespace weft {
namespace {

bool SameShapes(const Graph& graph, const GraphNode& add, const GraphNode&) {
  return graph.values[add.in[0]] == graph.values[add.in[1]];
}

// add(x, r) -> s; norm(s, weight, bias?) -> y, statistics...
GraphNode AddNorm(const GraphNode& add, const GraphNode& norm) {
  GraphNode node{norm.name, "", {add.in[0], add.in[1]}, {norm.out[0], add.out[0]}, norm.attrs};
  node.in.insert(node.in.end(), norm.in.begin() + 1, norm.in.end());
  node.out.insert(node.out.end(), norm.out.begin() + 1, norm.out.end());
  return node;
}

GraphNode LinearGelu(const GraphNode& linear, const GraphNode& gelu) {
  return {linear.name, "", linear.in, {gelu.out[0], linear.out[0]}, linear.attrs};
}

bool SameHeads(const Graph&, const GraphNode& rotary, const GraphNode& attention) {
  return !rotary.attrs.GetBool("inverse") && rotary.attrs.GetFloat("base") > 0 &&
         attention.attrs.GetFloat("rotary_base") == 0 &&
         rotary.attrs.GetInt("heads") == attention.attrs.GetInt("heads");
}

GraphNode RotaryAttention(const GraphNode& rotary, const GraphNode& attention) {
  GraphNode node{attention.name, "", rotary.in, attention.out, attention.attrs};
  node.attrs.Set("rotary_base", rotary.attrs.GetFloat("base"));
  return node;
}

bool NoBias(const Graph&, const GraphNode& linear, const GraphNode&) {
  return linear.in.size() == 2;
}

// linear(x, w) -> logits; cross_entropy(logits, targets) -> loss_sum, count, correct, lse
GraphNode LinearCrossEntropy(const GraphNode& linear, const GraphNode& loss) {
  return {linear.name,
          "",
          {linear.in[0], linear.in[1], loss.in[1]},
          {loss.out[0], loss.out[1], loss.out[2], -1, -1},
          linear.attrs};
}

// linear(dy, w) -> d; gelu_grad(h, d) -> dh
GraphNode LinearGradGelu(const GraphNode& linear, const GraphNode& grad) {
  return {linear.name, "", {linear.in[0], linear.in[1], grad.in[0]}, grad.out, linear.attrs};
}

// Over all dimensions but the last, which alone is kept.
bool SumsColumns(const Graph& graph, const GraphNode&, const GraphNode& sum) {
  const int lead = graph.values[sum.in[0]].shape.rank() - 1;
  const std::vector<int64_t> axes = sum.attrs.GetInts("axes");
  if (sum.attrs.GetBool("keep") || lead < 1 || std::ssize(axes) != lead) return false;
  for (int i = 0; i < lead; ++i) {
    if (axes[i] != i) return false;
  }
  return true;
}

// op(...) -> d, ...; sum(d) -> sums
GraphNode WithColumnSums(const GraphNode& op, const GraphNode& sum) {
  GraphNode node{op.name, "", op.in, op.out, op.attrs};
  node.out.push_back(sum.out[0]);
  return node;
}

constexpr FusionStage kForward = FusionStage::kForward;
constexpr FusionStage kBackward = FusionStage::kBackward;

constexpr FusionRule kRules[] = {
    {"residual into rms norm", kForward, "add", "rms_norm", 0, "add_rms_norm", false, true, -1,
     SameShapes, AddNorm},
    {"residual into layer norm", kForward, "add", "layer_norm", 0, "add_layer_norm", false, true,
     -1, SameShapes, AddNorm},
    {"gelu of a product", kForward, "linear", "gelu", 0, "linear_gelu", false, true, -1, nullptr,
     LinearGelu},
    {"rotary into attention", kForward, "rotary", "attention", 0, "attention", false, false, -1,
     SameHeads, RotaryAttention},
    // The fourth result of cross_entropy is the log of the sum.
    {"head into loss", kForward, "linear", "cross_entropy", 0, "linear_cross_entropy", true, false,
     3, NoBias, LinearCrossEntropy},
    {"product into gelu's gradient", kBackward, "linear", "gelu_grad", 1, "linear_grad_gelu", true,
     false, -1, NoBias, LinearGradGelu},
    {"bias gradient beside gelu's", kBackward, "linear_grad_gelu", "sum", 0,
     "linear_grad_gelu_bias", true, true, -1, SumsColumns, WithColumnSums},
    {"bias gradient beside rms norm's", kBackward, "rms_norm_grad", "sum", 0, "rms_norm_grad_sums",
     true, true, -1, SumsColumns, WithColumnSums},
    {"bias gradient beside layer norm's", kBackward, "layer_norm_grad", "sum", 0,
     "layer_norm_grad_sums", true, true, -1, SumsColumns, WithColumnSums},
};

// One rule over one graph: who makes and who uses each value, kept up to date as nodes are
// replaced.
class Pass {
 public:
  Pass(const OpSet& ops, Graph& graph, const FusionRule& rule)
      : ops_(ops),
        graph_(graph),
        rule_(rule),
        producer_(graph.values.size(), -1),
        uses_(graph.values.size(), 0),
        gone_(graph.nodes.size(), false) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId v : graph.nodes[i].out) producer_[v] = static_cast<int>(i);
      for (ValueId v : graph.nodes[i].in) ++uses_[v];
    }
    for (const GraphOutput& output : graph.outputs) ++uses_[output.value];
  }

  Status Run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& second = graph_.nodes[i];
      if (second.op != rule_.second || FedInput() >= second.in.size()) continue;
      const int first = producer_[second.in[FedInput()]];
      if (first < 0 || gone_[first] || !Fits(first, second)) continue;
      RETURN_IF_ERROR(Replace(first, static_cast<int>(i)));
    }
    std::vector<GraphNode> kept;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!gone_[i]) kept.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(kept);
    return absl::OkStatus();
  }

 private:
  size_t FedInput() const { return static_cast<size_t>(rule_.second_input); }

  bool Fits(int first_index, const GraphNode& second) const {
    const GraphNode& first = graph_.nodes[first_index];
    if (first.op != rule_.first || first.out[0] != second.in[FedInput()]) return false;
    if (!rule_.keeps_first && uses_[first.out[0]] != 1) return false;
    if (rule_.unused_result >= 0 && uses_[second.out[rule_.unused_result]] != 0) return false;
    // The fused node takes the first one's place, so all that it reads must be there by then.
    for (size_t i = 0; i < second.in.size(); ++i) {
      if (i != FedInput() && producer_[second.in[i]] >= first_index) return false;
    }
    return rule_.fits == nullptr || rule_.fits(graph_, first, second);
  }

  Status Replace(int first, int second) {
    GraphNode fused = rule_.make(graph_.nodes[first], graph_.nodes[second]);
    fused.op = rule_.fused;
    std::vector<TensorMeta> in;
    for (ValueId v : fused.in) in.push_back(graph_.values[v]);
    ASSIGN_OR_RETURN(const OpDef* op, ops_.Get(fused.op));
    StatusOr<std::vector<TensorMeta>> out = InferOp(*op, in, fused.attrs);
    if (!out.ok()) return Annotate(out.status(), absl::StrCat("fusing node '", fused.name, "'"));
    WEFT_CHECK(out->size() == fused.out.size());
    for (size_t i = 0; i < out->size(); ++i) {
      if (fused.out[i] < 0) {
        fused.out[i] = static_cast<ValueId>(graph_.values.size());
        graph_.values.push_back((*out)[i]);
        producer_.push_back(first);
        uses_.push_back(0);
      }
      producer_[fused.out[i]] = first;
    }
    if (!rule_.keeps_first) producer_[graph_.nodes[first].out[0]] = -1;
    graph_.nodes[first] = std::move(fused);
    gone_[second] = true;
    return absl::OkStatus();
  }

  const OpSet& ops_;
  Graph& graph_;
  const FusionRule& rule_;
  std::vector<int> producer_;  // by ValueId; -1: a parameter or input
  std::vector<int> uses_;      // by ValueId
  std::vector<bool> gone_;     // by node
};

}  // namespace

absl::Span<const FusionRule> FusionRules() { return kRules; }

StatusOr<Graph> Fuse(const OpSet& ops, Graph graph, Purpose purpose, FusionStage stage) {
  for (const FusionRule& rule : kRules) {
    if (rule.stage != stage) continue;
    if (rule.training_only && purpose != Purpose::kTraining) continue;
    RETURN_IF_ERROR(Pass(ops, graph, rule).Run());
  }
  return graph;
}

Graph DropUnitScales(Graph graph) {
  std::vector<ValueId> instead(graph.values.size());
  std::vector<bool> one(graph.values.size(), false);
  for (size_t v = 0; v < instead.size(); ++v) instead[v] = static_cast<ValueId>(v);
  std::vector<GraphNode> kept;
  for (GraphNode& node : graph.nodes) {
    for (ValueId& v : node.in) v = instead[v];
    if (node.op == "fill" && node.attrs.GetFloat("value") == 1.0) one[node.out[0]] = true;
    if (node.op == "cast" && one[node.in[0]]) one[node.out[0]] = true;
    if (node.op == "scale_by" && one[node.in[1]]) {
      instead[node.out[0]] = node.in[0];
    } else {
      kept.push_back(std::move(node));
    }
  }
  graph.nodes = std::move(kept);
  for (GraphOutput& output : graph.outputs) output.value = instead[output.value];
  // Values that no node makes any more; Rebuild drops them with the rest of what is dead.
  return graph;
}

}  // namespace weft
