#include "server/plan/model.h"

#include "fabric/graph/rebuild.h"
#include "fabric/models/gpt.h"
#include "fabric/models/vit.h"
#include "fabric/opset/opset.h"
#include "fabric/wire/convert_graph.h"
#include "fabric/wire/convert_model.h"

namespace weft::plan {

OptimizerSpec OptimizerFromProto(const v1::TrainSpec& train) {
  OptimizerSpec spec;
  spec.warmup = train.schedule().warmup();
  spec.total = train.steps();
  spec.cosine = train.schedule().decay() == v1::DECAY_COSINE;
  spec.min_lr = train.schedule().min_lr();
  spec.clip_norm = train.clip_norm();
  if (train.optimizer().has_sgd()) {
    spec.kind = OptimizerSpec::Kind::kSgd;
    spec.lr = train.optimizer().sgd().lr();
    spec.clamp = train.optimizer().sgd().clamp();
    return spec;
  }
  const v1::AdamW& adamw = train.optimizer().adamw();
  spec.kind = OptimizerSpec::Kind::kAdamW;
  spec.lr = adamw.lr();
  if (adamw.betas_size() == 2) {
    spec.beta1 = adamw.betas(0);
    spec.beta2 = adamw.betas(1);
  }
  if (adamw.has_eps()) spec.eps = adamw.eps();
  if (adamw.has_weight_decay()) spec.weight_decay = adamw.weight_decay();
  return spec;
}

StatusOr<Graph> ForwardGraph(const v1::JobSpec& job, int64_t rows, GraphMode mode) {
  const v1::ModelSpec& model = job.model();
  if (model.has_gpt()) return BuildGpt(wire::FromProto(model.gpt()), rows, mode);
  if (model.has_vit()) return BuildVit(wire::FromProto(model.vit(), job.data()), rows, mode);
  ASSIGN_OR_RETURN(const Graph graph, wire::FromProto(model.graph()));
  return Rebuild(BuiltinOpSet(), graph, {.rows = rows, .outputs = {}});
}

StatusOr<std::optional<Graph>> PredictionGraph(const v1::ModelSpec& model) {
  if (model.has_gpt()) {
    ASSIGN_OR_RETURN(Graph graph, BuildGpt(wire::FromProto(model.gpt()), 1, GraphMode::kPredict));
    return std::optional<Graph>(std::move(graph));
  }
  if (model.has_vit()) return std::optional<Graph>();
  ASSIGN_OR_RETURN(const Graph graph, wire::FromProto(model.graph()));
  if (graph.FindOutput("logits") < 0) return std::optional<Graph>();
  ASSIGN_OR_RETURN(Graph prediction,
                   Rebuild(BuiltinOpSet(), graph,
                           {.rows = 1, .outputs = {"logits"}, .drop_unused_inputs = true}));
  if (prediction.inputs.size() != 1 || prediction.inputs[0].name != "tokens") {
    return std::optional<Graph>();
  }
  return std::optional<Graph>(std::move(prediction));
}

}  // namespace weft::plan
