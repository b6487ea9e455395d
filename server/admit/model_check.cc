#include "server/admit/model_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"

#include "fabric/graph/backward.h"
#include "fabric/graph/rebuild.h"
#include "fabric/models/gpt.h"
#include "fabric/wire/convert_graph.h"
#include "fabric/wire/convert_model.h"

namespace weft::admit {
namespace {

// Samples of one lane, or one where batch and lanes make no sense.
int64_t LaneRows(const v1::JobSpec& spec) {
  const int64_t batch = spec.train().batch(), lanes = spec.lanes();
  return batch > 0 && lanes > 0 && batch % lanes == 0 ? batch / lanes : 1;
}

void CheckGpt(v1::JobSpec* spec, Problems* problems) {
  v1::GptModel* gpt = spec->mutable_model()->mutable_gpt();
  if (!v1::Position_IsValid(gpt->position()) || !v1::Norm_IsValid(gpt->norm()) ||
      !v1::Init_IsValid(gpt->init())) {
    return problems->Add("model.gpt", "position, norm or init is no choice there is");
  }
  if (gpt->position() == v1::POSITION_UNSPECIFIED) gpt->set_position(v1::POSITION_LEARNED);
  if (gpt->norm() == v1::NORM_UNSPECIFIED) gpt->set_norm(v1::NORM_LAYER);
  if (gpt->init() == v1::INIT_UNSPECIFIED) gpt->set_init(v1::INIT_NORMAL);
  if (!gpt->has_tied()) gpt->set_tied(true);
  if (!gpt->has_bias()) gpt->set_bias(false);
  if (!gpt->has_init_scale()) gpt->set_init_scale(0.02);
  const bool samples = spec->has_sample();
  const Status status = BuildGpt(wire::FromProto(*gpt), samples ? 1 : LaneRows(*spec),
                                 samples ? GraphMode::kPredict : GraphMode::kTrain)
                            .status();
  if (status.ok()) return;
  // Errors about the sizes begin with the field's name; the others are about a node or parameter.
  const bool about_field = absl::StartsWithIgnoreCase(status.message(), "layers:") ||
                           absl::StartsWithIgnoreCase(status.message(), "heads:") ||
                           absl::StartsWithIgnoreCase(status.message(), "dim:") ||
                           absl::StartsWithIgnoreCase(status.message(), "context:") ||
                           absl::StartsWithIgnoreCase(status.message(), "vocab:") ||
                           absl::StartsWithIgnoreCase(status.message(), "init_scale:") ||
                           absl::StartsWithIgnoreCase(status.message(), "residual_scale:");
  const absl::string_view message = status.message();
  const size_t colon = message.find(": ");
  if (about_field) {
    problems->Add(absl::StrCat("model.gpt.", message.substr(0, colon)), message.substr(colon + 2));
  } else {
    problems->Add("model.gpt", message);
  }
}

// The data feed hands out "tokens" and "targets", i32 [samples, context].
Status CheckFeed(const Graph& graph) {
  if (graph.inputs.size() != 2) {
    return InvalidArgument("has ", graph.inputs.size(), " inputs, wants 'tokens' and 'targets'");
  }
  for (const GraphInput& input : graph.inputs) {
    const TensorMeta& meta = graph.values[input.value];
    if (input.name != "tokens" && input.name != "targets") {
      return InvalidArgument("input '", input.name,
                             "' is not fed; the data has 'tokens' and 'targets'");
    }
    if (meta.dtype != DType::kI32 || meta.shape.rank() != 2) {
      return InvalidArgument("input '", input.name, "' is ", ToString(meta),
                             ", wants i32[samples, context]");
    }
  }
  const Shape& first = graph.values[graph.inputs[0].value].shape;
  if (graph.values[graph.inputs[1].value].shape != first) {
    return InvalidArgument("inputs 'tokens' and 'targets' differ in shape");
  }
  return absl::OkStatus();
}

Status CheckGraph(const OpSet& ops, const GraphLimits& limits, const v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(const Graph graph, wire::FromProto(spec.model().graph()));
  RETURN_IF_ERROR(ValidateGraph(ops, graph, limits));
  if (spec.has_sample()) {
    if (graph.FindOutput("logits") >= 0) return absl::OkStatus();
    return InvalidArgument("sampling needs an output 'logits'");
  }
  RETURN_IF_ERROR(ValidateTrainingGraph(graph));
  RETURN_IF_ERROR(CheckFeed(graph));
  ASSIGN_OR_RETURN(Graph lane, Rebuild(ops, graph, {.rows = LaneRows(spec), .outputs = {}}));
  return AppendBackward(ops, std::move(lane)).status();
}

}  // namespace

int64_t ContextOf(const v1::ModelSpec& model) {
  if (model.has_gpt()) return model.gpt().context();
  for (const v1::GraphInput& input : model.graph().inputs()) {
    if (input.name() != "tokens" || input.value() < 0 ||
        input.value() >= model.graph().values_size()) {
      continue;
    }
    const v1::TensorMeta& meta = model.graph().values(input.value());
    if (meta.dims_size() == 2) return meta.dims(1);
  }
  return 0;
}

void CheckModel(const OpSet& ops, const GraphLimits& limits, v1::JobSpec* spec,
                Problems* problems) {
  switch (spec->model().kind_case()) {
    case v1::ModelSpec::kGpt:
      return CheckGpt(spec, problems);
    case v1::ModelSpec::kGraph:
      return problems->Add("model.graph", CheckGraph(ops, limits, *spec));
    case v1::ModelSpec::kVit:
      return problems->Add("model.vit", "this build has gpt and graph only");
    case v1::ModelSpec::KIND_NOT_SET:
      return problems->Add("model", "is missing; choose gpt or graph");
  }
}

}  // namespace weft::admit
