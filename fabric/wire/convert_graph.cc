#include "fabric/wire/convert_graph.h"

#include <cmath>
#include <type_traits>
#include <variant>

#include "fabric/wire/convert_types.h"

namespace weft::wire {
namespace {

v1::Attribute AttributeToProto(const AttrValue& value) {
  v1::Attribute proto;
  std::visit(
      [&proto](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          proto.set_b(v);
        } else if constexpr (std::is_same_v<T, int64_t>) {
          proto.set_i(v);
        } else if constexpr (std::is_same_v<T, double>) {
          proto.set_f(v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          proto.set_s(v);
        } else {
          proto.mutable_ints();
          for (const int64_t i : v) proto.mutable_ints()->add_values(i);
        }
      },
      value);
  return proto;
}

StatusOr<AttrValue> AttributeFromProto(const v1::Attribute& proto) {
  switch (proto.value_case()) {
    case v1::Attribute::kB:
      return proto.b();
    case v1::Attribute::kI:
      return int64_t{proto.i()};
    case v1::Attribute::kF:
      return proto.f();
    case v1::Attribute::kS:
      return proto.s();
    case v1::Attribute::kInts:
      return std::vector<int64_t>(proto.ints().values().begin(), proto.ints().values().end());
    case v1::Attribute::VALUE_NOT_SET:
      break;
  }
  return InvalidArgument("has no value");
}

}  // namespace

void ToProto(const Attrs& attrs, AttributeMap* proto) {
  for (const auto& [name, value] : attrs.map()) (*proto)[name] = AttributeToProto(value);
}

StatusOr<Attrs> FromProto(const AttributeMap& proto) {
  Attrs attrs;
  for (const auto& [name, value] : proto) {
    StatusOr<AttrValue> converted = AttributeFromProto(value);
    if (!converted.ok()) {
      return Annotate(converted.status(), absl::StrCat("attribute '", name, "'"));
    }
    attrs.Set(name, *std::move(converted));
  }
  return attrs;
}

v1::InitKind ToProto(InitRule::Kind kind) {
  switch (kind) {
    case InitRule::Kind::kZeros:
      return v1::INIT_KIND_ZEROS;
    case InitRule::Kind::kOnes:
      return v1::INIT_KIND_ONES;
    case InitRule::Kind::kNormal:
      return v1::INIT_KIND_NORMAL;
    case InitRule::Kind::kUniform:
      return v1::INIT_KIND_UNIFORM;
  }
  return v1::INIT_KIND_UNSPECIFIED;
}

StatusOr<InitRule> InitFromProto(v1::InitKind kind, double scale) {
  if (!std::isfinite(scale) || scale < 0) {
    return InvalidArgument("init_scale is ", scale, ", wants a number from 0");
  }
  switch (kind) {
    case v1::INIT_KIND_UNSPECIFIED:
    case v1::INIT_KIND_ZEROS:
      return InitRule{InitRule::Kind::kZeros, scale};
    case v1::INIT_KIND_ONES:
      return InitRule{InitRule::Kind::kOnes, scale};
    case v1::INIT_KIND_NORMAL:
      return InitRule{InitRule::Kind::kNormal, scale};
    case v1::INIT_KIND_UNIFORM:
      return InitRule{InitRule::Kind::kUniform, scale};
    default:
      return InvalidArgument("there is no init ", static_cast<int>(kind));
  }
}

v1::Graph ToProto(const Graph& graph) {
  v1::Graph proto;
  for (const TensorMeta& meta : graph.values) *proto.add_values() = ToProto(meta);
  for (const GraphParameter& p : graph.parameters) {
    v1::GraphParameter* parameter = proto.add_parameters();
    parameter->set_name(p.name);
    parameter->set_value(p.value);
    parameter->set_init(ToProto(p.init.kind));
    parameter->set_init_scale(p.init.scale);
    parameter->set_decay(p.decay);
  }
  for (const GraphInput& i : graph.inputs) {
    v1::GraphInput* input = proto.add_inputs();
    input->set_name(i.name);
    input->set_value(i.value);
  }
  for (const GraphNode& n : graph.nodes) {
    v1::GraphNode* node = proto.add_nodes();
    node->set_name(n.name);
    node->set_op(n.op);
    for (const ValueId v : n.in) node->add_inputs(v);
    for (const ValueId v : n.out) node->add_outputs(v);
    ToProto(n.attrs, node->mutable_attributes());
  }
  for (const GraphOutput& o : graph.outputs) {
    v1::GraphOutput* output = proto.add_outputs();
    output->set_name(o.name);
    output->set_value(o.value);
  }
  return proto;
}

StatusOr<Graph> FromProto(const v1::Graph& proto) {
  Graph graph;
  for (const v1::TensorMeta& meta : proto.values()) {
    StatusOr<TensorMeta> converted = FromProto(meta);
    if (!converted.ok()) {
      return Annotate(converted.status(), absl::StrCat("value ", graph.values.size()));
    }
    graph.values.push_back(*converted);
  }
  for (const v1::GraphParameter& p : proto.parameters()) {
    const StatusOr<InitRule> init = InitFromProto(p.init(), p.init_scale());
    if (!init.ok()) {
      return Annotate(init.status(), absl::StrCat("parameter '", p.name().substr(0, 253), "'"));
    }
    graph.parameters.push_back({p.name(), p.value(), *init, p.decay()});
  }
  for (const v1::GraphInput& i : proto.inputs()) graph.inputs.push_back({i.name(), i.value()});
  for (const v1::GraphNode& n : proto.nodes()) {
    StatusOr<Attrs> attrs = FromProto(n.attributes());
    if (!attrs.ok()) {
      return Annotate(attrs.status(), absl::StrCat("node '", n.name().substr(0, 253), "'"));
    }
    graph.nodes.push_back({n.name(),
                           n.op(),
                           {n.inputs().begin(), n.inputs().end()},
                           {n.outputs().begin(), n.outputs().end()},
                           *std::move(attrs)});
  }
  for (const v1::GraphOutput& o : proto.outputs()) graph.outputs.push_back({o.name(), o.value()});
  return graph;
}

}  // namespace weft::wire
