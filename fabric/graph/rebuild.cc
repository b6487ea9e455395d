#include "fabric/graph/rebuild.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/graph/builder.h"

namespace weft {
namespace {

std::vector<GraphOutput> Wanted(const Graph& graph, const std::vector<std::string>& names) {
  if (names.empty()) return graph.outputs;
  std::vector<GraphOutput> wanted;
  for (const GraphOutput& output : graph.outputs) {
    if (std::find(names.begin(), names.end(), output.name) != names.end()) {
      wanted.push_back(output);
    }
  }
  return wanted;
}

// By value: whether an output depends on it.
std::vector<bool> Live(const Graph& graph, const std::vector<GraphOutput>& outputs) {
  std::vector<bool> live(graph.values.size(), false);
  for (const GraphOutput& output : outputs) live[output.value] = true;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool needed =
        std::any_of(node->out.begin(), node->out.end(), [&live](ValueId v) { return live[v]; });
    if (!needed) continue;
    for (ValueId v : node->in) live[v] = true;
  }
  return live;
}

}  // namespace

StatusOr<Graph> Rebuild(const OpSet& ops, const Graph& graph, const RebuildOptions& options) {
  const std::vector<GraphOutput> outputs = Wanted(graph, options.outputs);
  const std::vector<bool> live = Live(graph, outputs);
  GraphBuilder builder(ops);
  Values now(graph.values.size());  // by old ValueId
  for (const GraphParameter& p : graph.parameters) {
    now[p.value] = builder.Parameter(p.name, graph.values[p.value], p.init, p.decay);
  }
  for (const GraphInput& input : graph.inputs) {
    if (options.drop_unused_inputs && !live[input.value]) continue;
    TensorMeta meta = graph.values[input.value];
    if (options.rows > 0) {
      if (meta.shape.rank() == 0) {
        return InvalidArgument("input '", input.name, "' has no dimension that counts samples");
      }
      meta.shape.set_dim(0, options.rows);
    }
    now[input.value] = builder.Input(input.name, meta);
  }
  for (const GraphNode& node : graph.nodes) {
    if (std::none_of(node.out.begin(), node.out.end(), [&live](ValueId v) { return live[v]; })) {
      continue;
    }
    Values in;
    for (ValueId v : node.in) in.push_back(now[v]);
    const Values out = builder.EmitNamed(node.name, node.op, in, node.attrs);
    for (size_t i = 0; i < node.out.size() && i < out.size(); ++i) now[node.out[i]] = out[i];
  }
  for (const GraphOutput& output : outputs) builder.Output(output.name, now[output.value]);
  StatusOr<Graph> result = builder.Finish();
  if (!result.ok() && options.rows > 0) {
    return Annotate(result.status(), absl::StrCat("at ", options.rows, " samples"));
  }
  return result;
}

}  // namespace weft
