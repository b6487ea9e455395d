// Partition and lowering: what a program computes is what the graph says, and hostile programs are
// refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "fabric/graph/backward.h"
#include "fabric/graph/builder.h"
#include "fabric/graph/program_check.h"
#include "fabric/graph/rebuild.h"
#include "fabric/mesh/partition.h"
#include "fabric/models/gpt.h"
#include "tests/graph/graph_run.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsStatus;
using Code = absl::StatusCode;

constexpr double kTolerance = 5e-5;

GptSpec Reversal() {
  GptSpec spec;
  spec.layers = 2, spec.heads = 4, spec.dim = 128, spec.context = 64, spec.vocab = 36;
  spec.position = GptSpec::Position::kRotary;
  spec.norm = GptSpec::Norm::kRms;
  spec.tied = false;
  return spec;
}

GptSpec Tiny(bool rotary, bool rms, bool tied, bool bias) {
  GptSpec spec;
  spec.layers = 2, spec.heads = 2, spec.dim = 16, spec.context = 8, spec.vocab = 11;
  spec.position = rotary ? GptSpec::Position::kRotary : GptSpec::Position::kLearned;
  spec.norm = rms ? GptSpec::Norm::kRms : GptSpec::Norm::kLayer;
  spec.tied = tied;
  spec.bias = bias;
  return spec;
}

OptimizerSpec Clamped() {
  OptimizerSpec optimizer;
  optimizer.lr = 0.1, optimizer.clamp = 1, optimizer.cosine = true;
  optimizer.warmup = 20, optimizer.total = 700;
  return optimizer;
}

StatusOr<Program> ProgramOf(const GptSpec& spec, const OptimizerSpec& optimizer) {
  PartitionRequest request;
  ASSIGN_OR_RETURN(request.train, BuildGpt(spec, 5, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.evaluate, BuildGpt(spec, 16, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.predict, BuildGpt(spec, 1, GraphMode::kPredict));
  request.optimizer = optimizer;
  return MakeProgram(BuiltinOpSet(), request);
}

int CountOp(const Section& section, const std::string& op) {
  return static_cast<int>(std::count_if(section.calls.begin(), section.calls.end(),
                                        [&op](const Call& c) { return c.op == op; }));
}

TEST(MakeProgram, Reversal_IsFusedAndPinned) {
  ASSERT_OK_AND_ASSIGN(const Program program, ProgramOf(Reversal(), Clamped()));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  EXPECT_EQ(program.flat_elements, 403072);
  EXPECT_EQ(program.train.calls.size(), 42u);
  EXPECT_EQ(CountOp(program.train, "add_rms_norm"), 4);
  EXPECT_EQ(CountOp(program.train, "linear_gelu"), 2);
  EXPECT_EQ(CountOp(program.train, "linear_grad_gelu"), 2);
  EXPECT_EQ(CountOp(program.train, "rotary"), 0);
  EXPECT_EQ(CountOp(program.train, "linear_cross_entropy"), 1);
  EXPECT_EQ(CountOp(program.train, "scale_by"), 0);
  EXPECT_EQ(CountOp(program.train, "copy"), 0);
  EXPECT_EQ(CountOp(program.evaluate, "cross_entropy"), 1);
  EXPECT_EQ(CountOp(program.update, "sgd"), 1);
  EXPECT_TRUE(program.states.empty());
  // Every gradient is written to its place by the call that makes it, once.
  std::map<int64_t, int> written;
  for (const Call& call : program.train.calls) {
    for (const Operand& o : call.out) {
      if (o.space == Space::kGrad) ++written[o.offset / 4];
    }
  }
  ASSERT_EQ(written.size(), program.parameters.size());
  for (const ParameterSlot& slot : program.parameters)
    EXPECT_EQ(written[slot.offset], 1) << slot.name;
}

TEST(MakeProgram, AdamW_DecaysMatricesOnly) {
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerSpec::Kind::kAdamW;
  optimizer.lr = 1e-3, optimizer.clip_norm = 1, optimizer.total = 10;
  ASSERT_OK_AND_ASSIGN(const Program program, ProgramOf(Tiny(false, false, true, true), optimizer));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  EXPECT_EQ(program.states, (std::vector<std::string>{"m", "v"}));
  EXPECT_EQ(CountOp(program.update, "grad_norm"), 1);
  const std::vector<int64_t> ranges = program.update.calls.back().attrs.GetInts("decay_ranges");
  for (const ParameterSlot& slot : program.parameters) {
    for (const int64_t element : {slot.offset, slot.offset + slot.shape.elements() - 1}) {
      bool inside = false;
      for (size_t i = 0; i < ranges.size(); i += 2)
        inside |= ranges[i] <= element && element < ranges[i + 1];
      EXPECT_EQ(inside, slot.shape.rank() == 2) << slot.name;
    }
  }
}

TEST(MakeProgram, EveryVariant_ComputesWhatTheGraphSays) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Core> core, Core::Open({}));
  for (int bits = 0; bits < 16; ++bits) {
    SCOPED_TRACE(bits);
    const GptSpec spec = Tiny((bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0);
    ASSERT_OK_AND_ASSIGN(const Program program, ProgramOf(spec, Clamped()));
    ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
    ASSERT_OK_AND_ASSIGN(const testing::TrainResult got, testing::RunTrain(program, spec.vocab));
    ASSERT_OK_AND_ASSIGN(const Graph forward, BuildGpt(spec, 5, GraphMode::kTrain));
    ASSERT_OK_AND_ASSIGN(const Graph both, AppendBackward(BuiltinOpSet(), forward));
    ASSERT_OK_AND_ASSIGN(const testing::Named want, testing::RunEagerly(*core, both, spec.vocab));
    EXPECT_LT(testing::LargestDifference({got.stats[0]}, want.at("loss_sum")), kTolerance);
    EXPECT_EQ(got.stats[1], want.at("count")[0]);
    EXPECT_EQ(got.stats[2], want.at("correct")[0]);
    for (const auto& [name, gradient] : got.gradients) {
      EXPECT_LT(testing::LargestDifference(gradient, want.at(GradientName(name))), kTolerance)
          << name;
    }
    ASSERT_OK_AND_ASSIGN(const Graph predict, BuildGpt(spec, 1, GraphMode::kPredict));
    ASSERT_OK_AND_ASSIGN(const testing::Named logits,
                         testing::RunEagerly(*core, predict, spec.vocab));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> predicted,
                         testing::RunPredict(program, spec.vocab));
    EXPECT_LT(testing::LargestDifference(predicted, logits.at("logits")), kTolerance);
  }
}

// Views of parameters, a gradient that is a view, one gradient for two parameters, a transposed
// operand.
Graph Awkward(int64_t rows) {
  GraphBuilder b(BuiltinOpSet());
  const InitRule init = {InitRule::Kind::kNormal, 1};
  const Value tokens = b.Input("tokens", {DType::kI32, {rows, 3}});
  const Value targets = b.Input("targets", {DType::kI32, {rows, 3}});
  const Value left = b.Parameter("left", {DType::kF32, {5, 6}}, init, true);
  const Value right = b.Parameter("right", {DType::kF32, {5, 6}}, init, true);
  const Value folded = b.Parameter("folded", {DType::kF32, {36}}, init, false);
  const Value table = b.Emit("add", {left, right});
  const Value x = b.Emit("embedding", {table, tokens});
  const Value square = b.Emit("reshape", {folded}, {{"shape", std::vector<int64_t>{6, 6}}});
  const Value turned = b.Emit("transpose", {square}, {{"a", int64_t{0}}, {"b", int64_t{1}}});
  const Value y = b.Emit("gelu", {b.Emit("linear", {x, turned})});
  const Value head =
      b.Emit("slice", {y}, {{"axis", int64_t{2}}, {"begin", int64_t{1}}, {"end", int64_t{6}}});
  const Values loss = b.EmitAll("cross_entropy", {head, targets}, {});
  b.Output("loss_sum", loss[0]);
  b.Output("count", loss[1]);
  return *b.Finish();
}

TEST(MakeProgram, ViewsAndSharedGradients_AreCopiedWhereNeeded) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Core> core, Core::Open({}));
  PartitionRequest request;
  request.train = request.evaluate = Awkward(4);
  request.optimizer = Clamped();
  ASSERT_OK_AND_ASSIGN(const Program program, MakeProgram(BuiltinOpSet(), request));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  ASSERT_OK_AND_ASSIGN(const testing::TrainResult got, testing::RunTrain(program, 5));
  ASSERT_OK_AND_ASSIGN(const Graph both, AppendBackward(BuiltinOpSet(), Awkward(4)));
  ASSERT_OK_AND_ASSIGN(const testing::Named want, testing::RunEagerly(*core, both, 5));
  EXPECT_EQ(got.gradients.at("left"), got.gradients.at("right"));
  for (const auto& [name, gradient] : got.gradients) {
    EXPECT_LT(testing::LargestDifference(gradient, want.at(GradientName(name))), kTolerance)
        << name;
  }
}

TEST(BuildGpt, Variants_HaveTheNamedParameters) {
  const auto names = [](const GptSpec& spec) {
    std::string all;
    const StatusOr<Graph> graph = BuildGpt(spec, 1, GraphMode::kTrain);
    EXPECT_OK(graph);
    if (!graph.ok()) return all;
    for (const GraphParameter& p : graph->parameters) all += p.name + " ";
    return all;
  };
  GptSpec spec = Tiny(false, false, true, true);
  spec.layers = 1;
  EXPECT_EQ(
      names(spec),
      "wte wpe h.0.norm1.weight h.0.norm1.bias h.0.attn.qkv h.0.attn.qkv.bias h.0.attn.proj "
      "h.0.attn.proj.bias h.0.norm2.weight h.0.norm2.bias h.0.mlp.up h.0.mlp.up.bias h.0.mlp.down "
      "h.0.mlp.down.bias norm.weight norm.bias ");
  spec = Tiny(true, true, false, false);
  spec.layers = 1;
  EXPECT_EQ(
      names(spec),
      "wte h.0.norm1.weight h.0.attn.qkv h.0.attn.proj h.0.norm2.weight h.0.mlp.up h.0.mlp.down "
      "norm.weight head ");
}

TEST(BuildGpt, Init_FollowsTheFamily) {
  const auto scale = [](const GptSpec& spec, const std::string& name) {
    const StatusOr<Graph> graph = BuildGpt(spec, 1, GraphMode::kTrain);
    EXPECT_OK(graph);
    for (const GraphParameter& p : graph->parameters) {
      if (p.name == name) return p.init.scale;
    }
    return -1.0;
  };
  GptSpec spec = Reversal();
  EXPECT_DOUBLE_EQ(scale(spec, "wte"), 0.02);
  EXPECT_DOUBLE_EQ(scale(spec, "h.1.attn.qkv"), 0.02);
  EXPECT_DOUBLE_EQ(scale(spec, "h.1.mlp.down"), 0.01);
  spec.init = GptSpec::Init::kFanIn;
  spec.init_scale = 0.01;
  EXPECT_DOUBLE_EQ(scale(spec, "wte"), 0.01);
  EXPECT_DOUBLE_EQ(scale(spec, "h.1.attn.qkv"), 1 / std::sqrt(128.0));
  EXPECT_DOUBLE_EQ(scale(spec, "h.1.attn.proj"), 0.25 / std::sqrt(128.0));
  EXPECT_DOUBLE_EQ(scale(spec, "h.1.mlp.down"), 0.25 / std::sqrt(512.0));
  EXPECT_DOUBLE_EQ(scale(spec, "head"), 1 / std::sqrt(128.0));
}

Call& TrainCall(Program* p, const std::string& op) {
  return *std::find_if(p->train.calls.begin(), p->train.calls.end(),
                       [&op](const Call& c) { return c.op == op; });
}

TEST(ValidateProgram, HostilePrograms_AreRefused) {
  const struct {
    const char* says;
    std::function<void(Program*)> spoil;
  } rows[] = {
      {"leave a buffer",
       [](Program* p) { TrainCall(p, "embedding").in[0].offset = int64_t{1} << 62; }},
      {"leave a buffer", [](Program* p) { TrainCall(p, "embedding").in[0].offset = -4; }},
      {"leave a buffer", [](Program* p) { p->train.arena_bytes = 64; }},
      {"leave a buffer",
       [](Program* p) { TrainCall(p, "add").in[0].strides.set_dim(0, int64_t{1} << 61); }},
      {"leave a buffer",
       [](Program* p) { TrainCall(p, "add").in[0].strides.set_dim(0, -(int64_t{1} << 61)); }},
      {"strides [] for shape", [](Program* p) { TrainCall(p, "add").in[0].strides = {}; }},
      {"is not aligned", [](Program* p) { TrainCall(p, "linear").in[1].offset += 2; }},
      {"does not exist", [](Program* p) { TrainCall(p, "embedding").in[1].index = 9; }},
      {"does not exist", [](Program* p) { TrainCall(p, "embedding").in[1].index = -1; }},
      {"does not exist",
       [](Program* p) { TrainCall(p, "add").in[0].space = static_cast<Space>(77); }},
      {"its buffer holds i32",
       [](Program* p) { TrainCall(p, "embedding").in[1].meta.dtype = DType::kF32; }},
      {"which this section may not write",
       [](Program* p) {
         TrainCall(p, "add").out[0].space = Space::kParam, TrainCall(p, "add").out[0].offset = 0;
       }},
      {"the call says",
       [](Program* p) {
         TrainCall(p, "add").out[0].meta.shape = {1, 2},
                      TrainCall(p, "add").out[0].strides = {2, 1};
       }},
      {"the call names 0", [](Program* p) { TrainCall(p, "add").out.clear(); }},
      {"no op 'nonsense'", [](Program* p) { TrainCall(p, "add").op = "nonsense"; }},
      {"must be input 0 itself",
       [](Program* p) { p->update.calls.back().out[0].space = Space::kGrad; }},
      {"arena of -1 bytes", [](Program* p) { p->evaluate.arena_bytes = -1; }},
      {"overlaps another", [](Program* p) { p->parameters[1].offset = 0; }},
      {"overlaps another", [](Program* p) { p->parameters.back().offset = p->flat_elements; }},
      {"no multiple of 64", [](Program* p) { p->flat_elements += 1; }},
      {"stats begin with loss_sum", [](Program* p) { p->stats[0] = "other"; }},
      {"logits: bytes from", [](Program* p) { p->logits.offset = p->predict.arena_bytes; }},
      {"contiguous",
       [](Program* p) {
         TrainCall(p, "linear").in[1].strides = {0, 1};
       }},
  };
  ASSERT_OK_AND_ASSIGN(const Program good, ProgramOf(Tiny(true, true, false, false), Clamped()));
  for (const auto& row : rows) {
    Program bad = good;
    row.spoil(&bad);
    EXPECT_THAT(ValidateProgram(BuiltinOpSet(), bad), IsStatus(Code::kInvalidArgument, row.says))
        << row.says;
  }
}

}  // namespace
}  // namespace weft
