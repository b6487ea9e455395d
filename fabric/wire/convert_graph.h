// Graphs and attributes to and from proto. What FromProto accepts is well formed; whether a graph
// makes sense is ValidateGraph's to say. Pure functions.
#pragma once

#include <string>

#include "google/protobuf/map.h"

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "proto/graph.pb.h"

namespace weft::wire {

using AttributeMap = google::protobuf::Map<std::string, v1::Attribute>;

void ToProto(const Attrs& attrs, AttributeMap* proto);
// InvalidArgument for an attribute without a value.
StatusOr<Attrs> FromProto(const AttributeMap& proto);

v1::InitKind ToProto(InitRule::Kind kind);
StatusOr<InitRule> InitFromProto(v1::InitKind kind, double scale);

v1::Graph ToProto(const Graph& graph);
StatusOr<Graph> FromProto(const v1::Graph& proto);

}  // namespace weft::wire
