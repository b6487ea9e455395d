#include "fabric/graph/validate.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Names travel into logs, file names of dumps and checkpoint keys: printable ASCII without quotes.
Status CheckName(absl::string_view kind, const std::string& name, const GraphLimits& limits) {
  if (name.empty()) return InvalidArgument(kind, " without a name");
  if (static_cast<int64_t>(name.size()) > limits.name_bytes) {
    return InvalidArgument(kind, " '", name.substr(0, 40), "...': the name has ", name.size(),
                           " bytes, the limit is ", limits.name_bytes);
  }
  for (const char c : name) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\'' || c == '\\') {
      return InvalidArgument(kind,
                             " name has a character outside printable ASCII, or a space or quote");
    }
  }
  return absl::OkStatus();
}

class Validator {
 public:
  Validator(const OpSet& ops, const Graph& graph, const GraphLimits& limits)
      : ops_(ops), graph_(graph), limits_(limits), made_(graph.values.size(), false) {}

  Status Run() {
    RETURN_IF_ERROR(CheckSizes());
    for (const GraphParameter& p : graph_.parameters) {
      RETURN_IF_ERROR(CheckSource("parameter", p.name, p.value));
    }
    for (const GraphInput& i : graph_.inputs) {
      RETURN_IF_ERROR(CheckSource("input", i.name, i.value));
    }
    for (const GraphNode& node : graph_.nodes) {
      RETURN_IF_ERROR(
          Annotate(CheckNode(node), absl::StrCat("node '", node.name.substr(0, 253), "'")));
    }
    return CheckOutputs();
  }

 private:
  Status CheckSizes() const {
    const int64_t nodes = static_cast<int64_t>(graph_.nodes.size());
    if (nodes > limits_.nodes) {
      return InvalidArgument("the graph has ", nodes, " nodes, the limit is ", limits_.nodes);
    }
    int64_t edges = 0;
    for (const GraphNode& node : graph_.nodes) edges += static_cast<int64_t>(node.in.size());
    if (edges > limits_.edges) {
      return InvalidArgument("the graph has ", edges, " edges, the limit is ", limits_.edges);
    }
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const TensorMeta& m = graph_.values[i];
      const Status shape = CheckShape(m.dtype, m.shape.begin(), m.shape.rank());
      if (!shape.ok()) return Annotate(shape, absl::StrCat("value ", i));
    }
    return absl::OkStatus();
  }

  bool InRange(ValueId id) const {
    return id >= 0 && static_cast<size_t>(id) < graph_.values.size();
  }

  Status Make(ValueId id) {
    if (!InRange(id)) {
      return InvalidArgument("value ", id, " does not exist; there are ", graph_.values.size());
    }
    if (made_[id]) return InvalidArgument("value ", id, " is made twice");
    made_[id] = true;
    return absl::OkStatus();
  }

  Status CheckSource(absl::string_view kind, const std::string& name, ValueId value) {
    RETURN_IF_ERROR(CheckName(kind, name, limits_));
    if (!names_.insert(absl::StrCat(kind, " ", name)).second) {
      return InvalidArgument("two ", kind, "s are named '", name, "'");
    }
    return Annotate(Make(value), absl::StrCat(kind, " '", name, "'"));
  }

  Status CheckAttrSizes(const GraphNode& node) const {
    for (const auto& [name, value] : node.attrs.map()) {
      RETURN_IF_ERROR(CheckName("attribute", name, limits_));
      int64_t bytes = 0;
      if (const auto* text = std::get_if<std::string>(&value)) {
        bytes = static_cast<int64_t>(text->size());
      }
      if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
        bytes = static_cast<int64_t>(ints->size() * sizeof(int64_t));
      }
      if (bytes > limits_.attr_bytes) {
        return InvalidArgument("attribute '", name, "' has ", bytes, " bytes, the limit is ",
                               limits_.attr_bytes);
      }
    }
    return absl::OkStatus();
  }

  Status CheckNode(const GraphNode& node) {
    RETURN_IF_ERROR(CheckName("node", node.name, limits_));
    if (!names_.insert(absl::StrCat("node ", node.name)).second) {
      return InvalidArgument("another node has the same name");
    }
    RETURN_IF_ERROR(CheckAttrSizes(node));
    const StatusOr<const OpDef*> op = ops_.Get(node.op.substr(0, 253));
    if (!op.ok()) return InvalidArgument(op.status().message());
    if ((*op)->alias == Alias::kInPlace) {
      return InvalidArgument("op '", node.op, "' writes its inputs, which a graph may not");
    }
    std::vector<TensorMeta> in;
    for (ValueId id : node.in) {
      if (!InRange(id) || !made_[id]) {
        return InvalidArgument("input value ", id,
                               InRange(id) ? " is used before it is made" : " does not exist");
      }
      in.push_back(graph_.values[id]);
    }
    ASSIGN_OR_RETURN(const std::vector<TensorMeta> out, InferOp(**op, in, node.attrs));
    if (out.size() != node.out.size()) {
      return InvalidArgument(node.op, " has ", out.size(), " results, the node names ",
                             node.out.size());
    }
    for (size_t i = 0; i < out.size(); ++i) {
      RETURN_IF_ERROR(Make(node.out[i]));
      if (out[i] != graph_.values[node.out[i]]) {
        return InvalidArgument("result ", i, " of ", node.op, " is ", ToString(out[i]),
                               ", the graph says ", ToString(graph_.values[node.out[i]]));
      }
    }
    return absl::OkStatus();
  }

  Status CheckOutputs() {
    for (const GraphOutput& output : graph_.outputs) {
      RETURN_IF_ERROR(CheckName("output", output.name, limits_));
      if (!names_.insert(absl::StrCat("output ", output.name)).second) {
        return InvalidArgument("two outputs are named '", output.name, "'");
      }
      if (!InRange(output.value) || !made_[output.value]) {
        return InvalidArgument("output '", output.name, "': value ", output.value,
                               " is never made");
      }
    }
    for (size_t i = 0; i < made_.size(); ++i) {
      if (!made_[i]) return InvalidArgument("value ", i, " is never made");
    }
    return absl::OkStatus();
  }

  const OpSet& ops_;
  const Graph& graph_;
  const GraphLimits& limits_;
  std::vector<bool> made_;                  // by ValueId
  absl::flat_hash_set<std::string> names_;  // "kind name"
};

Status CheckScalar(const Graph& graph, const std::string& name) {
  const TensorMeta& meta = graph.values[graph.FindOutput(name)];
  if (meta == TensorMeta{DType::kF32, {}}) return absl::OkStatus();
  return InvalidArgument("output '", name, "' is ", ToString(meta), ", wants an f32 scalar");
}

}  // namespace

Status ValidateGraph(const OpSet& ops, const Graph& graph, const GraphLimits& limits) {
  return Validator(ops, graph, limits).Run();
}

Status ValidateTrainingGraph(const Graph& graph) {
  for (const char* name : {"loss_sum", "count"}) {
    if (graph.FindOutput(name) < 0) {
      return InvalidArgument("a training graph needs an output '", name, "' (f32 scalar)");
    }
    RETURN_IF_ERROR(CheckScalar(graph, name));
  }
  if (graph.FindOutput("correct") >= 0) RETURN_IF_ERROR(CheckScalar(graph, "correct"));
  if (graph.parameters.empty()) return InvalidArgument("the graph has no parameters to train");
  for (const GraphParameter& p : graph.parameters) {
    const TensorMeta& meta = graph.values[p.value];
    if (meta.dtype != DType::kF32) {
      return InvalidArgument("parameter '", p.name, "' is ", ToString(meta), ", wants f32");
    }
  }
  if (graph.inputs.empty()) return InvalidArgument("the graph has no inputs");
  for (const GraphInput& input : graph.inputs) {
    const Shape& shape = graph.values[input.value].shape;
    const Shape& first = graph.values[graph.inputs[0].value].shape;
    if (shape.rank() == 0 || first.rank() == 0 || shape.dim(0) != first.dim(0)) {
      return InvalidArgument("inputs '", graph.inputs[0].name, "' ", ToString(first), " and '",
                             input.name, "' ", ToString(shape),
                             " must count the same samples in dimension 0");
    }
  }
  return absl::OkStatus();
}

}  // namespace weft
