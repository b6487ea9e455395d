#include "fabric/mesh/partition.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/base/hash.h"
#include "fabric/graph/backward.h"
#include "fabric/graph/fuse.h"
#include "fabric/graph/precision.h"
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

// Graphs of one job into sections, all in one precision.
class SectionMaker {
 public:
  SectionMaker(const OpSet& ops, const PartitionRequest& request, Program* program)
      : ops_(ops), request_(request), program_(program) {}

  Status AddTrain() const;
  Status AddEvaluate() const;
  Status AddPredict() const;

 private:
  StatusOr<Graph> Optimized(const Graph& graph, Purpose purpose,
                            const RebuildOptions& options) const;
  StatusOr<Lowered> LowerAll(const Graph& graph, std::vector<Pin> pins, ValueId keep = -1) const;

  const OpSet& ops_;
  const PartitionRequest& request_;
  Program* program_;
};

// Fused, with what nobody needs gone, and in the precision of bf16 where that is asked for.
StatusOr<Graph> SectionMaker::Optimized(const Graph& graph, Purpose purpose,
                                        const RebuildOptions& options) const {
  ASSIGN_OR_RETURN(Graph live, Rebuild(ops_, graph, options));
  ASSIGN_OR_RETURN(Graph fused, Fuse(ops_, std::move(live), purpose));
  if (request_.precision == ComputePrecision::kBf16) {
    ASSIGN_OR_RETURN(fused, Narrow(ops_, fused));
  }
  return Rebuild(ops_, fused, {});
}

StatusOr<Lowered> SectionMaker::LowerAll(const Graph& graph, std::vector<Pin> pins,
                                         ValueId keep) const {
  const Offsets offsets = ByteOffsets(*program_);
  const bool tf32 = request_.precision == ComputePrecision::kTf32;
  const Graph final_graph = tf32 ? AllowTf32(ops_, graph) : graph;
  return Lower({ops_, final_graph, offsets, std::move(pins), keep, program_->low_copy});
}

std::vector<Pin> StatPins(const Graph& graph, const Program& program) {
  std::vector<Pin> pins;
  for (size_t i = 0; i < program.stats.size(); ++i) {
    pins.push_back(
        {graph.FindOutput(program.stats[i]), Space::kStats, static_cast<int64_t>(i) * kFloatBytes});
  }
  return pins;
}

Status SectionMaker::AddTrain() const {
  ASSIGN_OR_RETURN(Graph graph,
                   Optimized(request_.train, Purpose::kTraining, {.outputs = program_->stats}));
  ASSIGN_OR_RETURN(graph, AppendBackward(ops_, std::move(graph)));
  ASSIGN_OR_RETURN(graph, Rebuild(ops_, DropUnitScales(std::move(graph)), {}));
  ASSIGN_OR_RETURN(graph, Fuse(ops_, std::move(graph), Purpose::kTraining, FusionStage::kBackward));
  ASSIGN_OR_RETURN(graph, Rebuild(ops_, graph, {}));
  std::vector<Pin> pins = StatPins(graph, *program_);
  for (const ParameterSlot& slot : program_->parameters) {
    pins.push_back(
        {graph.FindOutput(GradientName(slot.name)), Space::kGrad, slot.offset * kFloatBytes});
  }
  ASSIGN_OR_RETURN(Lowered lowered, LowerAll(graph, std::move(pins)));
  program_->inputs = Inputs(graph);
  program_->train = std::move(lowered.section);
  return absl::OkStatus();
}

Status SectionMaker::AddEvaluate() const {
  ASSIGN_OR_RETURN(const Graph graph,
                   Optimized(request_.evaluate, Purpose::kInference, {.outputs = program_->stats}));
  ASSIGN_OR_RETURN(Lowered lowered, LowerAll(graph, StatPins(graph, *program_)));
  program_->eval_inputs = Inputs(graph);
  program_->evaluate = std::move(lowered.section);
  return absl::OkStatus();
}

Status SectionMaker::AddPredict() const {
  ASSIGN_OR_RETURN(const Graph graph,
                   Optimized(*request_.predict, Purpose::kInference,
                             {.outputs = {"logits"}, .drop_unused_inputs = true}));
  const ValueId logits = graph.FindOutput("logits");
  if (logits < 0) return InvalidArgument("the prediction graph has no output 'logits'");
  ASSIGN_OR_RETURN(Lowered lowered, LowerAll(graph, {}, logits));
  program_->predict_inputs = Inputs(graph);
  program_->predict = std::move(lowered.section);
  program_->logits = lowered.kept;
  return absl::OkStatus();
}

// The update section: calls over the flat buffers and scalars in a small arena.
class UpdateWriter {
 public:
  UpdateWriter(const OpSet& ops, const PartitionRequest& request, Program* program)
      : ops_(ops),
        spec_(request.optimizer),
        stochastic_(request.stochastic_rounding),
        program_(program),
        flat_{DType::kF32, {program->flat_elements}} {}

  Status Run() {
    const Operand grad = At(Space::kGrad, 0, flat_);
    const Operand count =
        At(Space::kStats, 0, kScalar, kFloatBytes);  // stats: loss_sum, count, ...
    const Operand step = At(Space::kStep, 0, {DType::kI64, {}});
    const Operand lr = Temporary();
    RETURN_IF_ERROR(Add(&program_->update, "lr_schedule", ScheduleAttrs(), {step}, {lr}));
    std::vector<Operand> norm;
    if (spec_.clip_norm > 0) {
      norm.push_back(Temporary());
      RETURN_IF_ERROR(Add(&program_->update, "grad_norm", {}, {grad, count}, norm));
    }
    const bool adamw = spec_.kind == OptimizerSpec::Kind::kAdamW;
    // First what is written: the parameters, their low copy, the states.
    std::vector<Operand> out = {At(Space::kParam, 0, flat_)};
    if (program_->low_copy) out.push_back(At(Space::kLow, 0, {DType::kBF16, flat_.shape}));
    if (adamw) {
      program_->states = {"m", "v"};
      out.push_back(At(Space::kState, 0, flat_));
      out.push_back(At(Space::kState, 1, flat_));
    }
    std::vector<Operand> in = out;
    in.insert(in.end(), {grad, count, lr});
    if (adamw) in.push_back(step);
    in.insert(in.end(), norm.begin(), norm.end());
    const std::string op = adamw ? "adamw" : "sgd";
    Attrs attrs = adamw ? AdamWAttrs() : SgdAttrs();
    if (!program_->low_copy) return Add(&program_->update, op, attrs, in, out);
    SetLowAttrs(&attrs);
    return Add(&program_->update, op + "_mixed", attrs, in, out);
  }

  // kParam -> kLow, rounded as the update does.
  Status AddRefresh() {
    program_->low_copy = true;
    Attrs attrs;
    SetLowAttrs(&attrs);
    return Add(&program_->refresh, "low_copy", attrs, {At(Space::kParam, 0, flat_)},
               {At(Space::kLow, 0, {DType::kBF16, flat_.shape})});
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

  // The same for the update and the refresh, so that both round alike.
  void SetLowAttrs(Attrs* attrs) const {
    attrs->Set("stochastic", stochastic_);
    attrs->Set("key", static_cast<int64_t>(StableHash("update.low") >> 1));
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

  Status Add(Section* section, const std::string& op, const Attrs& attrs,
             const std::vector<Operand>& in, const std::vector<Operand>& out) {
    ASSIGN_OR_RETURN(const OpDef* def, ops_.Get(op));
    std::vector<TensorMeta> metas;
    for (const Operand& operand : in) metas.push_back(operand.meta);
    ASSIGN_OR_RETURN(const std::vector<TensorMeta> results, InferOp(*def, metas, attrs));
    if (results.size() != out.size())
      return Internal("op '", op, "' has ", results.size(), " results");
    const char* prefix = section == &program_->refresh ? "refresh." : "update.";
    section->calls.push_back({op, "default", prefix + op, attrs, in, out});
    return absl::OkStatus();
  }

  const OpSet& ops_;
  const OptimizerSpec& spec_;
  const bool stochastic_;
  Program* program_;
  const TensorMeta flat_;
};

}  // namespace

StatusOr<Program> MakeProgram(const OpSet& ops, const PartitionRequest& request) {
  Program program;
  const bool trains = !request.train.nodes.empty();
  if (!trains && !request.predict.has_value()) return InvalidArgument("there is nothing to run");
  const bool narrow = request.precision == ComputePrecision::kBf16;
  if (request.stochastic_rounding && !narrow) {
    return InvalidArgument("stochastic rounding is of bf16 parameters; the precision is ",
                           NameOf(request.precision));
  }
  RETURN_IF_ERROR(PlaceParameters(trains ? request.train : *request.predict, &program));
  UpdateWriter update(ops, request, &program);
  if (narrow) RETURN_IF_ERROR(update.AddRefresh());
  const SectionMaker maker(ops, request, &program);
  if (trains) {
    program.stats = {"loss_sum", "count"};
    if (request.train.FindOutput("correct") >= 0) program.stats.push_back("correct");
    RETURN_IF_ERROR(maker.AddTrain());
    RETURN_IF_ERROR(update.Run());
    RETURN_IF_ERROR(Annotate(maker.AddEvaluate(), "evaluation"));
  }
  if (request.predict.has_value()) {
    RETURN_IF_ERROR(Annotate(maker.AddPredict(), "prediction"));
  }
  return program;
}

}  // namespace weft
