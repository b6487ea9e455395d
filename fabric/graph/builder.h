// GraphBuilder: the emitter that appends nodes to a graph instead of running kernels. Models,
// gradient rules and importers write graphs through it; shapes are inferred as nodes arrive, so a
// finished graph is consistent. Owns the graph until Finish. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/emitter.h"
#include "fabric/opset/opset.h"

namespace weft {

class GraphBuilder : public Emitter {
 public:
  // `ops` outlives the builder.
  explicit GraphBuilder(const OpSet& ops) : ops_(ops) {}
  // Continues `graph`, which is valid.
  GraphBuilder(const OpSet& ops, Graph graph);

  // Errors (an empty or repeated name) are kept as the emitter's first error.
  Value Parameter(const std::string& name, const TensorMeta& meta, const InitRule& init,
                  bool decay);
  Value Input(const std::string& name, const TensorMeta& meta);
  void Output(const std::string& name, const Value& value);

  // Appends a node that is named after its op within the scope, with a number when that name is
  // taken. Composite ops are appended as what they are made of. A random op without a `key` gets
  // the hash of its node's name.
  Values EmitAll(absl::string_view op, const Values& inputs, const Attrs& attrs) override;
  // As EmitAll, with `name` instead of the op's name.
  Values EmitNamed(absl::string_view name, absl::string_view op, const Values& inputs,
                   const Attrs& attrs);

  // The handle of a value that is in the graph.
  const Value& At(ValueId id) const { return handles_[id]; }
  // -1 when `value` is invalid or of another emitter.
  ValueId IdOf(const Value& value) const;

  // The graph so far.
  const Graph& graph() const { return graph_; }
  // The first error, or the graph; the builder is spent afterwards.
  StatusOr<Graph> Finish();

  // Prefixes the names of nodes while it lives: "h.0" then "attn" gives "h.0.attn.<op>".
  class Scope {
   public:
    Scope(GraphBuilder& builder, absl::string_view name);
    ~Scope() { builder_.scope_ = outer_; }
    Scope(const Scope&) = delete;

   private:
    GraphBuilder& builder_;
    std::string outer_;
  };

 private:
  ValueId NewValue(const TensorMeta& meta);
  std::string UniqueName(absl::string_view name);
  // All of `inputs` as ids; false when one is invalid or foreign (foreign ones are an error).
  bool Ids(absl::string_view op, const Values& inputs, std::vector<ValueId>* ids);
  bool Claim(absl::string_view kind, const std::string& name);

  const OpSet& ops_;
  Graph graph_;
  std::vector<Value> handles_;  // by ValueId
  std::string scope_;
  absl::flat_hash_set<std::string> names_;             // of nodes
  absl::flat_hash_set<std::string> outside_names_;     // "kind name" of parameters, inputs, outputs
  absl::flat_hash_map<std::string, int> next_number_;  // by taken name
};

}  // namespace weft
