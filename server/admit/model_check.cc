#include "server/admit/model_check.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

#include "fabric/graph/backward.h"
#include "fabric/graph/rebuild.h"
#include "fabric/models/gpt.h"
#include "fabric/models/vit.h"
#include "fabric/wire/convert_graph.h"
#include "fabric/wire/convert_model.h"

namespace weft::admit {
namespace {

// Samples of one lane, or one where batch and lanes make no sense.
int64_t LaneRows(const v1::JobSpec& spec) {
  const int64_t batch = spec.train().batch(), lanes = spec.lanes();
  return batch > 0 && lanes > 0 && batch % lanes == 0 ? batch / lanes : 1;
}

// What building a family said: errors about one of `fields` begin with its name, the others are
// about a node or parameter.
void AddFamilyProblem(const std::string& family, const std::vector<std::string>& fields,
                      const Status& status, Problems* problems) {
  if (status.ok()) return;
  const absl::string_view message = status.message();
  for (const std::string& field : fields) {
    const std::string prefix = absl::StrCat(field, ": ");
    if (!absl::StartsWith(message, prefix)) continue;
    return problems->Add(absl::StrCat(family, ".", field), message.substr(prefix.size()));
  }
  problems->Add(family, message);
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
  if (spec->data().has_cifar10()) {
    return problems->Add("data.cifar10", "has images, and model.gpt reads tokens; use model.vit");
  }
  const bool samples = spec->has_sample();
  const GraphMode mode = samples ? GraphMode::kPredict : GraphMode::kTrain;
  AddFamilyProblem(
      "model.gpt", {"layers", "heads", "dim", "context", "vocab", "init_scale", "residual_scale"},
      BuildGpt(wire::FromProto(*gpt), samples ? 1 : LaneRows(*spec), mode).status(), problems);
}

void CheckVit(v1::JobSpec* spec, Problems* problems) {
  v1::VitModel* vit = spec->mutable_model()->mutable_vit();
  if (spec->has_sample()) {
    return problems->Add("model.vit", "a sampling job writes text, and this model reads images");
  }
  if (!v1::Norm_IsValid(vit->norm())) {
    return problems->Add("model.vit.norm", "there is no choice ", static_cast<int>(vit->norm()));
  }
  if (!spec->data().has_cifar10()) {
    if (spec->data().kind_case() == v1::DataSpec::KIND_NOT_SET) return;  // said already
    return problems->Add("data", "has tokens, and model.vit reads images; use cifar10");
  }
  if (vit->norm() == v1::NORM_UNSPECIFIED) vit->set_norm(v1::NORM_LAYER);
  const VitSpec filled = wire::FromProto(*vit, spec->data());
  vit->set_image(filled.image);
  vit->set_patch(filled.patch);
  vit->set_classes(filled.classes);
  vit->set_class_tokens(filled.class_tokens);
  vit->set_qkv_bias(filled.qkv_bias);
  vit->set_init_scale(filled.init_scale);
  if (filled.image != wire::kCifar10Side) {
    problems->Add("model.vit.image", "is ", filled.image, ", the data's images have ",
                  wire::kCifar10Side, " pixels a side");
  }
  if (filled.classes < wire::kCifar10Classes) {
    problems->Add("model.vit.classes", "is ", filled.classes, ", the data has ",
                  wire::kCifar10Classes);
  }
  AddFamilyProblem(
      "model.vit",
      {"layers", "heads", "dim", "image", "patch", "classes", "class_tokens", "init_scale"},
      BuildVit(filled, LaneRows(*spec), GraphMode::kTrain).status(), problems);
}

// What the data hands out, by the input's name: dtype, and dimensions of a sample, -1 for any.
struct Fed {
  const char* name;
  DType dtype;
  std::vector<int64_t> dims;
  const char* meta;  // as text
};

std::vector<Fed> FedBy(const v1::DataSpec& data) {
  if (data.has_cifar10()) {
    return {{"images", DType::kU8, {3, 32, 32}, "u8[samples, 3, 32, 32]"},
            {"targets", DType::kI32, {}, "i32[samples]"}};
  }
  return {{"tokens", DType::kI32, {-1}, "i32[samples, context]"},
          {"targets", DType::kI32, {-1}, "i32[samples, context]"}};
}

bool Fits(const TensorMeta& meta, const Fed& fed) {
  if (meta.dtype != fed.dtype || meta.shape.rank() != static_cast<int>(fed.dims.size()) + 1) {
    return false;
  }
  for (size_t i = 0; i < fed.dims.size(); ++i) {
    if (fed.dims[i] >= 0 && meta.shape[static_cast<int>(i) + 1] != fed.dims[i]) return false;
  }
  return true;
}

Status CheckFeed(const Graph& graph, const v1::DataSpec& data) {
  const std::vector<Fed> fed = FedBy(data);
  const std::string both = absl::StrCat("'", fed[0].name, "' and '", fed[1].name, "'");
  if (graph.inputs.size() != 2) {
    return InvalidArgument("has ", graph.inputs.size(), " inputs, wants ", both);
  }
  for (const GraphInput& input : graph.inputs) {
    const TensorMeta& meta = graph.values[input.value];
    const auto it = std::find_if(fed.begin(), fed.end(),
                                 [&input](const Fed& f) { return input.name == f.name; });
    if (it == fed.end()) {
      return InvalidArgument("input '", input.name, "' is not fed; the data has ", both);
    }
    if (!Fits(meta, *it)) {
      return InvalidArgument("input '", input.name, "' is ", ToString(meta), ", wants ", it->meta);
    }
  }
  const Shape& first = graph.values[graph.inputs[0].value].shape;
  if (!data.has_cifar10() && graph.values[graph.inputs[1].value].shape != first) {
    return InvalidArgument("inputs ", both, " differ in shape");
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
  RETURN_IF_ERROR(CheckFeed(graph, spec.data()));
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
      return CheckVit(spec, problems);
    case v1::ModelSpec::KIND_NOT_SET:
      return problems->Add("model", "is missing; choose gpt, vit or graph");
  }
}

}  // namespace weft::admit
