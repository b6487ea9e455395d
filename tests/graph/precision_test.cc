// Graphs in bf16 and TF32: which values are narrow, what their gradients are, and where a program
// finds its bf16 parameters.
#include "fabric/graph/precision.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/graph/backward.h"
#include "fabric/graph/builder.h"
#include "fabric/graph/fuse.h"
#include "fabric/graph/print.h"
#include "fabric/graph/program_check.h"
#include "fabric/graph/rebuild.h"
#include "fabric/graph/validate.h"
#include "fabric/mesh/partition.h"
#include "fabric/models/gpt.h"
#include "fabric/models/vit.h"
#include "tests/ops/case_data.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsStatus;
using Code = absl::StatusCode;

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;

Value Matrix(GraphBuilder& b, const std::string& name, Shape shape) {
  return b.Parameter(name, {kF32, shape}, {InitRule::Kind::kNormal, 1}, true);
}

StatusOr<Graph> Build(const std::function<void(GraphBuilder&)>& build) {
  GraphBuilder b(BuiltinOpSet());
  build(b);
  return b.Finish();
}

const GraphNode* NodeNamed(const Graph& graph, const std::string& name) {
  for (const GraphNode& node : graph.nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

// "bf16 i32 -> bf16": the dtypes of a node's operands and results.
std::string DTypesOf(const Graph& graph, const GraphNode& node) {
  std::string text;
  for (const ValueId v : node.in) absl::StrAppend(&text, NameOf(graph.values[v].dtype), " ");
  absl::StrAppend(&text, "->");
  for (const ValueId v : node.out) absl::StrAppend(&text, " ", NameOf(graph.values[v].dtype));
  return text;
}

int CountOp(const Graph& graph, const std::string& op) {
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                        [&op](const GraphNode& n) { return n.op == op; }));
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

StatusOr<Graph> FusedGpt(const GptSpec& spec, GraphMode mode) {
  ASSIGN_OR_RETURN(Graph graph, BuildGpt(spec, 2, mode));
  const bool trains = mode == GraphMode::kTrain;
  const Purpose purpose = trains ? Purpose::kTraining : Purpose::kInference;
  ASSIGN_OR_RETURN(graph, Fuse(BuiltinOpSet(), std::move(graph), purpose));
  return Rebuild(BuiltinOpSet(), graph, {});
}

TEST(Narrow, Gpt_ComputesInBf16WithFullNormsAndSums) {
  ASSERT_OK_AND_ASSIGN(const Graph full,
                       FusedGpt(Tiny(false, false, true, true), GraphMode::kTrain));
  ASSERT_OK_AND_ASSIGN(const Graph graph, Narrow(BuiltinOpSet(), full));
  ASSERT_OK(ValidateGraph(BuiltinOpSet(), graph));
  ASSERT_OK(ValidateTrainingGraph(graph));
  const struct {
    const char* node;
    const char* op;
    const char* dtypes;
  } rows[] = {
      {"wte.bf16", "cast", "f32 -> bf16"},
      {"wte", "embedding", "bf16 i32 -> bf16"},
      {"wpe", "add", "bf16 bf16 -> bf16"},
      {"h.0.norm1", "layer_norm", "bf16 f32 f32 -> bf16 f32 f32"},
      {"h.0.attn.qkv", "linear", "bf16 bf16 bf16 -> bf16"},
      {"h.0.attn", "attention", "bf16 -> bf16 f32"},
      {"h.0.norm2", "add_layer_norm", "bf16 bf16 f32 f32 -> bf16 bf16 f32 f32"},
      {"h.0.mlp.up", "linear_gelu", "bf16 bf16 bf16 -> bf16 bf16"},
      {"head", "linear_cross_entropy", "bf16 bf16 i32 -> f32 f32 f32 bf16 f32"},
  };
  for (const auto& row : rows) {
    const GraphNode* node = NodeNamed(graph, row.node);
    ASSERT_NE(node, nullptr) << row.node << "\n" << ToString(graph);
    EXPECT_EQ(node->op, row.op);
    EXPECT_EQ(DTypesOf(graph, *node), row.dtypes) << row.node;
  }
  // Each product's weight and bias and each table once: 4 of each a block, wte (also the head's)
  // and wpe. Nothing else is cast.
  EXPECT_EQ(CountOp(graph, "cast"), 2 * 8 + 2);
  for (const GraphParameter& p : graph.parameters) EXPECT_EQ(graph.values[p.value].dtype, kF32);
}

TEST(Narrow, Predictions_AreF32) {
  ASSERT_OK_AND_ASSIGN(const Graph full,
                       FusedGpt(Tiny(true, true, false, false), GraphMode::kPredict));
  ASSERT_OK_AND_ASSIGN(const Graph graph, Narrow(BuiltinOpSet(), full));
  EXPECT_EQ(graph.values[graph.FindOutput("logits")].dtype, kF32);
  EXPECT_EQ(graph.nodes.back().name, "head.f32");
  EXPECT_EQ(DTypesOf(graph, graph.nodes.back()), "bf16 -> f32");
}

// The built-in ops and one that computes in f32 only.
const OpSet& OpsWithPlain() {
  static const OpSet* const ops = [] {
    OpSet* set = new OpSet(BuiltinOpSet());
    OpDef plain;
    plain.name = "plain";
    plain.inputs = {"x"};
    plain.infer = [](const InferArgs& a) -> StatusOr<std::vector<TensorMeta>> {
      if (a.in[0].dtype != kF32) return InvalidArgument("wants f32");
      return std::vector<TensorMeta>{a.in[0]};
    };
    plain.grad = [](const GradArgs& g) -> Values { return {g.e.Emit("neg", {g.d[0]})}; };
    set->Add(plain);
    plain.name = "stubborn";
    plain.precision = Precision::kNarrow;
    set->Add(plain);
    return set;
  }();
  return *ops;
}

TEST(Narrow, EachOp_TakesWhatItsPrecisionSays) {
  GraphBuilder b(OpsWithPlain());
  const Value x = b.Input("x", {kF32, {3, 4}});
  const Value a = b.EmitNamed("a", "tanh", {x}, {})[0];
  const Value y = b.EmitNamed("y", "matmul", {a, Matrix(b, "w", {4, 4})}, {})[0];
  const Value z = b.EmitNamed("z", "mul", {y, a}, {})[0];
  const Value p = b.EmitNamed("p", "plain", {z}, {})[0];
  const Value q = b.EmitNamed("q", "plain", {z}, {})[0];
  const Value d = b.EmitNamed("d", "cast", {z}, {{"dtype", std::string("f64")}})[0];
  b.Output("wide", b.EmitNamed("e", "exp", {d}, {})[0]);
  b.Output("sum", b.EmitNamed("s", "sum", {z}, {})[0]);
  b.Output("r", b.EmitNamed("r", "add", {p, q}, {})[0]);
  b.Output("z", z);
  ASSERT_OK_AND_ASSIGN(const Graph full, b.Finish());
  ASSERT_OK_AND_ASSIGN(const Graph graph, Narrow(OpsWithPlain(), full));
  ASSERT_OK(ValidateGraph(OpsWithPlain(), graph));
  const std::map<std::string, std::string> expected = {
      {"a", "f32 -> f32"},        // follows, and nothing is narrow yet
      {"a.bf16", "f32 -> bf16"},  // once, for the product and for z
      {"w.bf16", "f32 -> bf16"},  {"y", "bf16 bf16 -> bf16"},
      {"z", "bf16 bf16 -> bf16"},  // follows y
      {"z.f32", "bf16 -> f32"},    // once, for p, q and the output
      {"p", "f32 -> f32"},        {"q", "f32 -> f32"},
      {"d", "bf16 -> f64"},       {"e", "f64 -> f64"},
      {"s", "bf16 -> f32"},       {"r", "f32 f32 -> f32"},
  };
  EXPECT_EQ(graph.nodes.size(), expected.size()) << ToString(graph);
  for (const GraphNode& node : graph.nodes) {
    ASSERT_TRUE(expected.contains(node.name)) << node.name;
    EXPECT_EQ(DTypesOf(graph, node), expected.at(node.name)) << node.name;
  }
  for (const GraphOutput& o : graph.outputs) {
    EXPECT_EQ(graph.values[o.value], full.values[full.FindOutput(o.name)]) << o.name;
  }
  // What is narrow already stays as it is.
  ASSERT_OK_AND_ASSIGN(const Graph again, Narrow(OpsWithPlain(), graph));
  EXPECT_EQ(ToString(again), ToString(graph));
}

TEST(Narrow, RefusedByAnOp_NamesTheNode) {
  GraphBuilder b(OpsWithPlain());
  b.Output("y", b.EmitNamed("h.0.y", "stubborn", {Matrix(b, "x", {4})}, {})[0]);
  EXPECT_THAT(Narrow(OpsWithPlain(), *b.Finish()),
              IsStatus(Code::kInvalidArgument, "in bf16: node 'h.0.y'"));
}

TEST(AppendBackward, NarrowGpt_ParametersHaveUnroundedGradients) {
  for (int bits = 0; bits < 16; ++bits) {
    SCOPED_TRACE(bits);
    const GptSpec spec = Tiny((bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0);
    ASSERT_OK_AND_ASSIGN(const Graph full, FusedGpt(spec, GraphMode::kTrain));
    ASSERT_OK_AND_ASSIGN(Graph graph, Narrow(BuiltinOpSet(), full));
    ASSERT_OK_AND_ASSIGN(graph, AppendBackward(BuiltinOpSet(), std::move(graph)));
    ASSERT_OK_AND_ASSIGN(graph, Rebuild(BuiltinOpSet(), DropUnitScales(std::move(graph)), {}));
    ASSERT_OK(ValidateGraph(BuiltinOpSet(), graph));
    EXPECT_EQ(CountOp(graph, "scale_by"), 0);
    // By value: the node that makes it.
    std::map<ValueId, const GraphNode*> maker;
    for (const GraphNode& node : graph.nodes) {
      for (const ValueId v : node.out) maker[v] = &node;
    }
    for (const GraphParameter& p : graph.parameters) {
      const ValueId gradient = graph.FindOutput(GradientName(p.name));
      EXPECT_EQ(graph.values[gradient].dtype, kF32);
      EXPECT_NE(maker.at(gradient)->op, "cast") << p.name << "\n" << ToString(graph);
    }
    // Casts are of parameters alone; gradients flow back in bf16.
    std::set<ValueId> parameters;
    for (const GraphParameter& p : graph.parameters) parameters.insert(p.value);
    for (const GraphNode& node : graph.nodes) {
      if (node.op == "cast") {
        EXPECT_TRUE(parameters.contains(node.in[0])) << node.name;
      }
    }
  }
}

TEST(AppendBackward, FullGradients_AreNarrowedAndAddedInF32) {
  ASSERT_OK_AND_ASSIGN(Graph graph, Build([](GraphBuilder& b) {
                         // Both uses of w give gradients: bf16 from the product, f32 from the sum.
                         const Value w = b.EmitNamed("w16", "cast", {Matrix(b, "w", {4, 4})},
                                                     {{"dtype", std::string("bf16")}})[0];
                         const Value y = b.EmitNamed("y", "matmul", {w, w}, {})[0];
                         b.Output("loss_sum",
                                  b.Emit("add", {b.EmitNamed("sy", "sum", {y}, {})[0],
                                                 b.EmitNamed("sw", "sum", {w}, {})[0]}));
                       }));
  ASSERT_OK_AND_ASSIGN(graph, AppendBackward(BuiltinOpSet(), std::move(graph)));
  ASSERT_OK(ValidateGraph(BuiltinOpSet(), graph));
  // y is no narrowed value: its gradient is.
  const GraphNode* cast = NodeNamed(graph, "grad.sy.cast");
  ASSERT_NE(cast, nullptr) << ToString(graph);
  EXPECT_EQ(DTypesOf(graph, *cast), "f32 -> bf16");
  const ValueId gradient = graph.FindOutput(GradientName("w"));
  EXPECT_EQ(graph.values[gradient].dtype, kF32);
  for (const GraphNode& node : graph.nodes) {
    if (node.out[0] == gradient) {
      EXPECT_EQ(node.op, "add");
    }
  }
}

// The row's op on bf16 operands, with the sum of its first result as the loss. Empty: nothing of it
// has a gradient.
StatusOr<Graph> NarrowRow(const OpDef& op, const testing::OpCase& c) {
  GraphBuilder b(BuiltinOpSet());
  Values in;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const TensorMeta& meta = c.inputs[i].meta;
    const std::string& name = op.inputs[std::min(i, op.inputs.size() - 1)];
    const bool full =
        std::find(op.full_inputs.begin(), op.full_inputs.end(), name) != op.full_inputs.end();
    const std::string number = absl::StrCat("in", i);
    if (!IsFloat(meta.dtype)) {
      in.push_back(b.Input(number, meta));
    } else {
      const Value v = c.inputs[i].check_grad ? Matrix(b, number, meta.shape)
                                             : b.Input(number, {kF32, meta.shape});
      in.push_back(full ? v : b.Emit("cast", {v}, {{"dtype", std::string(NameOf(DType::kBF16))}}));
    }
  }
  const Value y = b.Emit(c.op, in, c.attrs);
  b.Output("loss_sum", b.Emit("sum", {y}));
  return b.Finish();
}

TEST(AppendBackward, EveryRowInBf16_HasARuleThatFits) {
  int tried = 0;
  for (const testing::OpCase& c : testing::AllCases()) {
    const OpDef& op = *BuiltinOpSet().Find(c.op);
    const bool smooth = std::any_of(c.inputs.begin(), c.inputs.end(), [](const auto& input) {
      return input.check_grad && input.meta.dtype == kF32;
    });
    if (op.precision == Precision::kFull || op.grad == nullptr || !op.differentiable || !smooth) {
      continue;
    }
    SCOPED_TRACE(testing::NameOf(c));
    ASSERT_OK_AND_ASSIGN(Graph graph, NarrowRow(op, c));
    ASSERT_OK_AND_ASSIGN(graph, AppendBackward(BuiltinOpSet(), std::move(graph)));
    ASSERT_OK(ValidateGraph(BuiltinOpSet(), graph));
    ++tried;
  }
  EXPECT_GT(tried, 100);
}

TEST(AllowTf32, OnlyWhereTheOpHasIt) {
  ASSERT_OK_AND_ASSIGN(Graph graph, FusedGpt(Tiny(true, true, false, true), GraphMode::kTrain));
  ASSERT_OK_AND_ASSIGN(graph, AppendBackward(BuiltinOpSet(), std::move(graph)));
  graph = AllowTf32(BuiltinOpSet(), std::move(graph));
  ASSERT_OK(ValidateGraph(BuiltinOpSet(), graph));
  const std::set<std::string> products = {"linear", "linear_gelu", "linear_grad_w", "matmul",
                                          "linear_cross_entropy"};
  for (const GraphNode& node : graph.nodes) {
    if (products.contains(node.op)) {
      EXPECT_TRUE(node.attrs.GetBool("tf32")) << node.name;
    }
    if (node.op == "add" || node.op == "rms_norm") {
      EXPECT_FALSE(node.attrs.Has("tf32"));
    }
  }
}

StatusOr<Program> ProgramOf(const GptSpec& spec, ComputePrecision precision, bool adamw,
                            bool stochastic = false) {
  PartitionRequest request;
  ASSIGN_OR_RETURN(request.train, BuildGpt(spec, 5, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.evaluate, BuildGpt(spec, 16, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.predict, BuildGpt(spec, 1, GraphMode::kPredict));
  request.optimizer.lr = 0.1, request.optimizer.total = 10, request.optimizer.clip_norm = 1;
  if (adamw) request.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  request.precision = precision;
  request.stochastic_rounding = stochastic;
  return MakeProgram(BuiltinOpSet(), request);
}

TEST(MakeProgram, Bf16_ReadsTheLowCopy) {
  ASSERT_OK_AND_ASSIGN(const Program program,
                       ProgramOf(Tiny(false, false, true, true), ComputePrecision::kBf16, true));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  EXPECT_TRUE(program.low_copy);
  ASSERT_EQ(program.refresh.calls.size(), 1u);
  EXPECT_EQ(program.refresh.calls[0].op, "low_copy");
  EXPECT_EQ(program.refresh.calls[0].in[0].space, Space::kParam);
  EXPECT_EQ(program.refresh.calls[0].out[0].space, Space::kLow);
  EXPECT_EQ(program.refresh.calls[0].out[0].meta, (TensorMeta{kBF16, {program.flat_elements}}));
  std::map<int64_t, const ParameterSlot*> slots;  // by element offset
  for (const ParameterSlot& slot : program.parameters) slots[slot.offset] = &slot;
  for (const Section* section : {&program.train, &program.evaluate, &program.predict}) {
    std::set<std::string> narrow, full;
    for (const Call& call : section->calls) {
      for (const Operand& o : call.in) {
        if (o.space == Space::kLow) {
          EXPECT_EQ(o.meta.dtype, kBF16);
          ASSERT_TRUE(slots.contains(o.offset / 2)) << call.node;
          EXPECT_EQ(o.meta.shape, slots[o.offset / 2]->shape);
          narrow.insert(slots[o.offset / 2]->name);
        } else if (o.space == Space::kParam) {
          full.insert(slots.at(o.offset / 4)->name);
        }
      }
      // Only the predicted logits are cast by a call.
      if (call.op == "cast") {
        EXPECT_EQ(call.node, "head.f32");
      }
      for (const Operand& o : call.out) {
        if (o.space == Space::kGrad) {
          EXPECT_EQ(o.meta.dtype, kF32);
        }
      }
    }
    for (const ParameterSlot& slot : program.parameters) {
      const bool norm = slot.name.find("norm") != std::string::npos;
      EXPECT_EQ(full.contains(slot.name), norm) << slot.name;
      EXPECT_EQ(narrow.contains(slot.name), !norm) << slot.name;
    }
  }
  EXPECT_EQ(program.logits.meta.dtype, kF32);
}

TEST(MakeProgram, Bf16_UpdatesParametersAndLowCopyTogether) {
  for (const bool adamw : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const Program program,
                         ProgramOf(Tiny(true, true, false, false), ComputePrecision::kBf16, adamw,
                                   /*stochastic=*/adamw));
    ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
    const Call& update = program.update.calls.back();
    EXPECT_EQ(update.op, adamw ? "adamw_mixed" : "sgd_mixed");
    EXPECT_EQ(update.out[0].space, Space::kParam);
    EXPECT_EQ(update.out[1].space, Space::kLow);
    EXPECT_EQ(update.attrs.GetBool("stochastic"), adamw);
    // The same draws, so that a restart goes on with the same bits.
    const Call& refresh = program.refresh.calls[0];
    EXPECT_EQ(refresh.attrs.GetBool("stochastic"), adamw);
    EXPECT_EQ(refresh.attrs.GetInt("key"), update.attrs.GetInt("key"));
  }
}

TEST(MakeProgram, ViewsOfParameters_AreInTheLowCopyToo) {
  PartitionRequest request;
  ASSERT_OK_AND_ASSIGN(
      request.train, Build([](GraphBuilder& b) {
        const Value tokens = b.Input("tokens", {DType::kI32, {2, 3}});
        const Value targets = b.Input("targets", {DType::kI32, {2, 3}});
        const Value x = b.Emit("embedding", {Matrix(b, "table", {5, 6}), tokens});
        const Value square =
            b.Emit("reshape", {Matrix(b, "folded", {36})}, {{"shape", std::vector<int64_t>{6, 6}}});
        const Value head = b.Emit(
            "slice", {square}, {{"axis", int64_t{0}}, {"begin", int64_t{1}}, {"end", int64_t{6}}});
        const Value y = b.EmitNamed("y", "linear", {x, head}, {{"transpose_w", true}})[0];
        const Values loss = b.EmitAll("cross_entropy", {y, targets}, {});
        b.Output("loss_sum", loss[0]);
        b.Output("count", loss[1]);
      }));
  request.evaluate = request.train;
  request.precision = ComputePrecision::kBf16;
  ASSERT_OK_AND_ASSIGN(const Program program, MakeProgram(BuiltinOpSet(), request));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  const auto y = std::find_if(program.evaluate.calls.begin(), program.evaluate.calls.end(),
                              [](const Call& call) { return call.node == "y"; });
  ASSERT_NE(y, program.evaluate.calls.end());
  EXPECT_EQ(y->in[1].space, Space::kLow);
  EXPECT_EQ(y->in[1].offset, (program.parameters[1].offset + 6) * 2);
}

TEST(MakeProgram, VisionTransformerInBf16_CastsItsPatchesOnly) {
  VitSpec spec;
  spec.layers = 2, spec.heads = 2, spec.dim = 16, spec.image = 8, spec.classes = 10;
  spec.class_tokens = 3;
  spec.feed.mean = {4914, 4822, 4465}, spec.feed.deviation = {2470, 2435, 2616};
  for (const VitSpec::Norm norm : {VitSpec::Norm::kLayer, VitSpec::Norm::kRms}) {
    spec.norm = norm;
    PartitionRequest request;
    ASSERT_OK_AND_ASSIGN(request.train, BuildVit(spec, 4, GraphMode::kTrain));
    ASSERT_OK_AND_ASSIGN(request.evaluate, BuildVit(spec, 4, GraphMode::kEvaluate));
    request.precision = ComputePrecision::kBf16;
    ASSERT_OK_AND_ASSIGN(const Program program, MakeProgram(BuiltinOpSet(), request));
    ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
    std::set<std::string> casts;
    for (const Call& call : program.evaluate.calls) {
      if (call.op == "cast") casts.insert(call.node);
    }
    // The mean over class tokens is a sum, so f32, and the norm after it takes bf16.
    EXPECT_EQ(casts, (std::set<std::string>{"patches.bf16", "pool.mean.bf16"}));
  }
}

TEST(MakeProgram, Tf32_MarksProducts) {
  ASSERT_OK_AND_ASSIGN(const Program program,
                       ProgramOf(Tiny(false, false, true, true), ComputePrecision::kTf32, true));
  ASSERT_OK(ValidateProgram(BuiltinOpSet(), program));
  EXPECT_FALSE(program.low_copy);
  EXPECT_TRUE(program.refresh.calls.empty());
  for (const Section* section : {&program.train, &program.evaluate, &program.predict}) {
    int products = 0;
    for (const Call& call : section->calls) {
      if (call.op != "linear" && call.op != "linear_grad_w") continue;
      EXPECT_TRUE(call.attrs.GetBool("tf32")) << call.node;
      ++products;
    }
    EXPECT_GT(products, 3);
  }
}

TEST(MakeProgram, Fp32_IsWhatItWas) {
  ASSERT_OK_AND_ASSIGN(const Program program,
                       ProgramOf(Tiny(false, false, true, true), ComputePrecision::kFp32, true));
  EXPECT_FALSE(program.low_copy);
  EXPECT_EQ(ToString(program).find("bf16"), std::string::npos);
  EXPECT_EQ(ToString(program).find("tf32"), std::string::npos);
  EXPECT_THAT(ProgramOf(Tiny(false, false, true, true), ComputePrecision::kFp32, true, true),
              IsStatus(Code::kInvalidArgument,
                       "stochastic rounding is of bf16 parameters; the precision is fp32"));
}

TEST(ValidateProgram, LowCopy_IsCheckedAsOtherBuffers) {
  const struct {
    const char* says;
    std::function<void(Program*)> spoil;
  } rows[] = {
      {"comes with a refresh section", [](Program* p) { p->refresh.calls.clear(); }},
      {"comes with a refresh section", [](Program* p) { p->low_copy = false; }},
      {"refresh: node 'refresh.low_copy' (low_copy): result 0: is in buffer 5",
       [](Program* p) {
         p->refresh.calls[0].out[0].space = Space::kArena;
         p->refresh.arena_bytes = p->flat_elements * 2;
       }},
      {"leave a buffer", [](Program* p) { p->refresh.calls[0].out[0].offset = 2; }},
      {"its buffer holds bf16", [](Program* p) { p->refresh.calls[0].out[0].meta.dtype = kF32; }},
      {"does not exist", [](Program* p) { p->refresh.calls[0].out[0].index = 1; }},
  };
  ASSERT_OK_AND_ASSIGN(const Program good,
                       ProgramOf(Tiny(true, true, false, false), ComputePrecision::kBf16, false));
  for (const auto& row : rows) {
    Program bad = good;
    row.spoil(&bad);
    EXPECT_THAT(ValidateProgram(BuiltinOpSet(), bad), IsStatus(Code::kInvalidArgument, row.says))
        << row.says;
  }
}

}  // namespace
}  // namespace weft
