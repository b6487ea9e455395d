#include "fabric/mesh/partition.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/graph/backward.h"
#include "fabric/graph/fuse.h"
#include "fabric/graph/rebuild.h"
#include "fabric/mesh/lower.h"

namespace weft {
namespace {

constexpr int64_t kFloatBytes = 4;

using Offsets = absl::flat_hash_map<std::string, int64_t>;

// Parameters one after the other in the graph's order, each at a multiple of kFlatAlign.
Status PlaceParameters(const Graph& graph, Program* program) {
  for (const GraphParameter& p : graph.parameters) {
    const TensorMeta& meta = graph.values[p.value];
    if (meta.dtype != DType::kF32) {
      return InvalidArgument("parameter '", p.name, "' is ", ToString(meta), ", wants f32");
    }
    program->parameters.push_back({p.name, meta.shape, program->flat_elements, p.init, p.decay});
    program->flat_elements += (meta.elements() + kFlatAlign - 1) / kFlatAlign * kFlatAlign;
    // Flat buffers are one operand of the optimizer, so their size is bounded as any tensor's.
    RETURN_IF_ERROR(
        Annotate(CheckShape(DType::kF32, &program->flat_elements, 1), "all parameters together"));
  }
  return absl::OkStatus();
}

Offsets ByteOffsets(const Program& program) {
  Offsets offsets;
  for (const ParameterSlot& slot : program.parameters)
    offsets[slot.name] = slot.offset * kFloatBytes;
  return offsets;
}

std::vector<InputSlot> Inputs(const Graph& graph) {
  std::vector<InputSlot> slots;
  for (const GraphInput& input : graph.inputs)
    slots.push_back({input.name, graph.values[input.value]});
  return slots;
}

// Fused, with what nobody needs gone.
StatusOr<Graph> Optimized(const OpSet& ops, const Graph& graph, Purpose purpose,
                          const RebuildOptions& options) {
  ASSIGN_OR_RETURN(Graph live, Rebuild(ops, graph, options));
  ASSIGN_OR_RETURN(Graph fused, Fuse(ops, std::move(live), purpose));
  return Rebuild(ops, fused, {});
}

std::vector<Pin> StatPins(const Graph& graph, const Program& program) {
  std::vector<Pin> pins;
  for (size_t i = 0; i < program.stats.size(); ++i) {
    pins.push_back(
        {graph.FindOutput(program.stats[i]), Space::kStats, static_cast<int64_t>(i) * kFloatBytes});
  }
  return pins;
}

Status AddTrain(const OpSet& ops, const Graph& forward, Program* program) {
  ASSIGN_OR_RETURN(Graph graph,
                   Optimized(ops, forward, Purpose::kTraining, {.outputs = program->stats}));
  ASSIGN_OR_RETURN(graph, AppendBackward(ops, std::move(graph)));
  ASSIGN_OR_RETURN(graph, Rebuild(ops, DropUnitScales(std::move(graph)), {}));
  ASSIGN_OR_RETURN(graph, Fuse(ops, std::move(graph), Purpose::kTraining, FusionStage::kBackward));
  ASSIGN_OR_RETURN(graph, Rebuild(ops, graph, {}));
  std::vector<Pin> pins = StatPins(graph, *program);
  for (const ParameterSlot& slot : program->parameters) {
    pins.push_back(
        {graph.FindOutput(GradientName(slot.name)), Space::kGrad, slot.offset * kFloatBytes});
  }
  ASSIGN_OR_RETURN(Lowered lowered, Lower({ops, graph, ByteOffsets(*program), std::move(pins)}));
  program->inputs = Inputs(graph);
  program->train = std::move(lowered.section);
  return absl::OkStatus();
}

Status AddEvaluate(const OpSet& ops, const Graph& forward, Program* program) {
  ASSIGN_OR_RETURN(const Graph graph,
                   Optimized(ops, forward, Purpose::kInference, {.outputs = program->stats}));
  ASSIGN_OR_RETURN(Lowered lowered,
                   Lower({ops, graph, ByteOffsets(*program), StatPins(graph, *program)}));
  program->eval_inputs = Inputs(graph);
  program->evaluate = std::move(lowered.section);
  return absl::OkStatus();
}

Status AddPredict(const OpSet& ops, const Graph& forward, Program* program) {
  ASSIGN_OR_RETURN(const Graph graph,
                   Optimized(ops, forward, Purpose::kInference,
                             {.outputs = {"logits"}, .drop_unused_inputs = true}));
  const ValueId logits = graph.FindOutput("logits");
  if (logits < 0) return InvalidArgument("the prediction graph has no output 'logits'");
  ASSIGN_OR_RETURN(Lowered lowered, Lower({ops, graph, ByteOffsets(*program), {}, logits}));
  program->predict_inputs = Inputs(graph);
  program->predict = std::move(lowered.section);
  program->logits = lowered.kept;
  return absl::OkStatus();
}

// The update section: calls over the flat buffers and scalars in a small arena.
class UpdateWriter {
 public:
  UpdateWriter(const OpSet& ops, const OptimizerSpec& spec, Program* program)
      : ops_(ops), spec_(spec), program_(program), flat_{DType::kF32, {program->flat_elements}} {}

  Status Run() {
    const Operand grad = At(Space::kGrad, 0, flat_);
    const Operand count =
        At(Space::kStats, 0, kScalar, kFloatBytes);  // stats: loss_sum, count, ...
    const Operand step = At(Space::kStep, 0, {DType::kI64, {}});
    const Operand lr = Temporary();
    RETURN_IF_ERROR(Add("lr_schedule", ScheduleAttrs(), {step}, {lr}));
    std::vector<Operand> norm;
    if (spec_.clip_norm > 0) {
      norm.push_back(Temporary());
      RETURN_IF_ERROR(Add("grad_norm", {}, {grad, count}, norm));
    }
    const Operand param = At(Space::kParam, 0, flat_);
    std::vector<Operand> in = {param, grad, count, lr}, out = {param};
    if (spec_.kind == OptimizerSpec::Kind::kAdamW) {
      program_->states = {"m", "v"};
      out = {param, At(Space::kState, 0, flat_), At(Space::kState, 1, flat_)};
      in = {out[0], out[1], out[2], grad, count, lr, step};
    }
    in.insert(in.end(), norm.begin(), norm.end());
    const bool adamw = spec_.kind == OptimizerSpec::Kind::kAdamW;
    return Add(adamw ? "adamw" : "sgd", adamw ? AdamWAttrs() : SgdAttrs(), in, out);
  }

 private:
  static constexpr TensorMeta kScalar = {DType::kF32, {}};

  static Operand At(Space space, int32_t index, const TensorMeta& meta, int64_t offset = 0) {
    return {space, index, offset, meta, ContiguousStrides(meta.shape)};
  }

  Operand Temporary() {
    constexpr int64_t kApart = 64;  // bytes; no two scalars on a cache line
    const Operand operand = At(Space::kArena, 0, kScalar, program_->update.arena_bytes);
    program_->update.arena_bytes += kApart;
    return operand;
  }

  Attrs ScheduleAttrs() const {
    return {{"base", spec_.lr},
            {"min", spec_.min_lr},
            {"warmup", spec_.warmup},
            {"total", spec_.total},
            {"decay", std::string(spec_.cosine ? "cosine" : "constant")}};
  }
  Attrs SgdAttrs() const { return {{"clamp", spec_.clamp}, {"clip_norm", spec_.clip_norm}}; }
  Attrs AdamWAttrs() const {
    return {{"beta1", spec_.beta1},
            {"beta2", spec_.beta2},
            {"eps", spec_.eps},
            {"weight_decay", spec_.weight_decay},
            {"clip_norm", spec_.clip_norm},
            {"decay_ranges", DecayRanges()}};
  }

  // Neighbours run together; the gaps between them are zero and stay so whether decayed or not.
  std::vector<int64_t> DecayRanges() const {
    std::vector<int64_t> ranges;
    int64_t reached = -1;  // where the last parameter's room ends, if that one decays
    for (const ParameterSlot& slot : program_->parameters) {
      const int64_t end = slot.offset + slot.shape.elements();
      if (slot.decay && reached == slot.offset) {
        ranges.back() = end;
      } else if (slot.decay) {
        ranges.push_back(slot.offset);
        ranges.push_back(end);
      }
      reached = slot.decay ? (end + kFlatAlign - 1) / kFlatAlign * kFlatAlign : -1;
    }
    return ranges;
  }

  Status Add(const std::string& op, const Attrs& attrs, const std::vector<Operand>& in,
             const std::vector<Operand>& out) {
    ASSIGN_OR_RETURN(const OpDef* def, ops_.Get(op));
    std::vector<TensorMeta> metas;
    for (const Operand& operand : in) metas.push_back(operand.meta);
    ASSIGN_OR_RETURN(const std::vector<TensorMeta> results, InferOp(*def, metas, attrs));
    if (results.size() != out.size())
      return Internal("op '", op, "' has ", results.size(), " results");
    program_->update.calls.push_back({op, "default", "update." + op, attrs, in, out});
    return absl::OkStatus();
  }

  const OpSet& ops_;
  const OptimizerSpec& spec_;
  Program* program_;
  const TensorMeta flat_;
};

}  // namespace

StatusOr<Program> MakeProgram(const OpSet& ops, const PartitionRequest& request) {
  Program program;
  const bool trains = !request.train.nodes.empty();
  if (!trains && !request.predict.has_value()) return InvalidArgument("there is nothing to run");
  RETURN_IF_ERROR(PlaceParameters(trains ? request.train : *request.predict, &program));
  if (trains) {
    program.stats = {"loss_sum", "count"};
    if (request.train.FindOutput("correct") >= 0) program.stats.push_back("correct");
    RETURN_IF_ERROR(AddTrain(ops, request.train, &program));
    RETURN_IF_ERROR(UpdateWriter(ops, request.optimizer, &program).Run());
    RETURN_IF_ERROR(Annotate(AddEvaluate(ops, request.evaluate, &program), "evaluation"));
  }
  if (request.predict.has_value()) {
    RETURN_IF_ERROR(Annotate(AddPredict(ops, *request.predict, &program), "prediction"));
  }
  return program;
}

}  // namespace weft
