#include "fabric/graph/builder.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/base/hash.h"

namespace weft {
namespace {

class GraphValue : public ValueRep {
 public:
  GraphValue(TensorMeta meta, const GraphBuilder* owner, ValueId id)
      : ValueRep(std::move(meta)), owner_(owner), id_(id) {}
  const GraphBuilder* owner() const { return owner_; }
  ValueId id() const { return id_; }

 private:
  const GraphBuilder* owner_;
  ValueId id_;
};

}  // namespace

GraphBuilder::GraphBuilder(const OpSet& ops, Graph graph) : ops_(ops), graph_(std::move(graph)) {
  for (size_t id = 0; id < graph_.values.size(); ++id) {
    handles_.emplace_back(
        std::make_shared<GraphValue>(graph_.values[id], this, static_cast<ValueId>(id)));
  }
  for (const GraphNode& node : graph_.nodes) names_.insert(node.name);
  for (const GraphParameter& p : graph_.parameters) Claim("parameter", p.name);
  for (const GraphInput& i : graph_.inputs) Claim("input", i.name);
  for (const GraphOutput& o : graph_.outputs) Claim("output", o.name);
}

ValueId GraphBuilder::NewValue(const TensorMeta& meta) {
  const ValueId id = static_cast<ValueId>(graph_.values.size());
  graph_.values.push_back(meta);
  handles_.emplace_back(std::make_shared<GraphValue>(meta, this, id));
  return id;
}

ValueId GraphBuilder::IdOf(const Value& value) const {
  const auto* rep = dynamic_cast<const GraphValue*>(value.rep().get());
  return rep == nullptr || rep->owner() != this ? -1 : rep->id();
}

bool GraphBuilder::Claim(absl::string_view kind, const std::string& name) {
  if (name.empty()) {
    Fail(InvalidArgument(kind, " without a name"));
    return false;
  }
  if (!outside_names_.insert(absl::StrCat(kind, " ", name)).second) {
    Fail(InvalidArgument("two ", kind, "s are named '", name, "'"));
    return false;
  }
  return true;
}

Value GraphBuilder::Parameter(const std::string& name, const TensorMeta& meta, const InitRule& init,
                              bool decay) {
  const Status shape = CheckShape(meta.dtype, meta.shape.begin(), meta.shape.rank());
  if (!shape.ok()) Fail(Annotate(shape, absl::StrCat("parameter '", name, "'")));
  if (!status().ok() || !Claim("parameter", name)) return {};
  const ValueId id = NewValue(meta);
  graph_.parameters.push_back({name, id, init, decay});
  return At(id);
}

Value GraphBuilder::Input(const std::string& name, const TensorMeta& meta) {
  const Status shape = CheckShape(meta.dtype, meta.shape.begin(), meta.shape.rank());
  if (!shape.ok()) Fail(Annotate(shape, absl::StrCat("input '", name, "'")));
  if (!status().ok() || !Claim("input", name)) return {};
  const ValueId id = NewValue(meta);
  graph_.inputs.push_back({name, id});
  return At(id);
}

void GraphBuilder::Output(const std::string& name, const Value& value) {
  if (!status().ok()) return;
  const ValueId id = IdOf(value);
  if (id < 0) return Fail(InvalidArgument("output '", name, "' is no value of this graph"));
  if (Claim("output", name)) graph_.outputs.push_back({name, id});
}

std::string GraphBuilder::UniqueName(absl::string_view name) {
  const std::string base = scope_.empty() ? std::string(name) : absl::StrCat(scope_, ".", name);
  if (names_.insert(base).second) return base;
  int& number = next_number_[base];
  std::string numbered;
  do {
    numbered = absl::StrCat(base, ".", ++number);
  } while (!names_.insert(numbered).second);
  return numbered;
}

bool GraphBuilder::Ids(absl::string_view op, const Values& inputs, std::vector<ValueId>* ids) {
  for (const Value& input : inputs) {
    if (!input.valid()) return false;
    ids->push_back(IdOf(input));
    if (ids->back() < 0) {
      Fail(InvalidArgument(op, ": input ", ids->size() - 1, " belongs to another graph"));
      return false;
    }
  }
  return true;
}

Values GraphBuilder::EmitAll(absl::string_view op, const Values& inputs, const Attrs& attrs) {
  return EmitNamed(op, op, inputs, attrs);
}

Values GraphBuilder::EmitNamed(absl::string_view name, absl::string_view op, const Values& inputs,
                               const Attrs& attrs) {
  const StatusOr<const OpDef*> found = ops_.Get(op);
  if (!found.ok()) {
    Fail(Annotate(found.status(), scope_.empty() ? std::string(name) : scope_));
    return Values(1);
  }
  const OpDef& def = **found;
  const Values invalid(def.outputs.size());
  std::vector<ValueId> ids;
  if (!status().ok() || !Ids(op, inputs, &ids)) return invalid;

  GraphNode node{UniqueName(name), def.name, std::move(ids), {}, attrs};
  if (def.expand != nullptr) {
    const Scope scope(*this, name);
    return def.expand(*this, inputs, attrs);
  }
  if (def.random && !attrs.Has("key")) {
    // Keys are signed in graphs; the top bit is not worth a second rule.
    node.attrs.Set("key", static_cast<int64_t>(StableHash(node.name) >> 1));
  }
  std::vector<TensorMeta> metas;
  for (const Value& input : inputs) metas.push_back(input.meta());
  const StatusOr<std::vector<TensorMeta>> results = InferOp(def, metas, node.attrs);
  if (!results.ok()) {
    Fail(Annotate(results.status(), absl::StrCat("node '", node.name, "'")));
    return invalid;
  }
  Values out;
  for (const TensorMeta& meta : *results) {
    node.out.push_back(NewValue(meta));
    out.push_back(At(node.out.back()));
  }
  graph_.nodes.push_back(std::move(node));
  return out;
}

StatusOr<Graph> GraphBuilder::Finish() {
  if (!status().ok()) return status();
  handles_.clear();
  return std::move(graph_);
}

GraphBuilder::Scope::Scope(GraphBuilder& builder, absl::string_view name)
    : builder_(builder), outer_(builder.scope_) {
  builder_.scope_ = outer_.empty() ? std::string(name) : absl::StrCat(outer_, ".", name);
}

}  // namespace weft
