// Builder, rebuild and backward over the built-in ops.
#include <string>

#include "fabric/base/hash.h"
#include "fabric/graph/backward.h"
#include "fabric/graph/builder.h"
#include "fabric/graph/print.h"
#include "fabric/graph/rebuild.h"
#include "fabric/graph/validate.h"
#include "tests/graph/graph_run.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsStatus;
using Code = absl::StatusCode;

const InitRule kNormal = {InitRule::Kind::kNormal, 1};

TEST(GraphBuilder, Scopes_NameNodesUniquely) {
  GraphBuilder b(BuiltinOpSet());
  const Value x = b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
  {
    const GraphBuilder::Scope h(b, "h.0");
    const GraphBuilder::Scope attn(b, "attn");
    b.Output("a", b.Emit("neg", {x}));
    b.Output("b", b.Emit("neg", {x}));
  }
  b.Output("c", b.EmitNamed("last", "neg", {x}, {})[0]);
  ASSERT_OK_AND_ASSIGN(const Graph graph, b.Finish());
  EXPECT_EQ(graph.nodes[0].name, "h.0.attn.neg");
  EXPECT_EQ(graph.nodes[1].name, "h.0.attn.neg.1");
  EXPECT_EQ(graph.nodes[2].name, "last");
}

TEST(GraphBuilder, RandomOps_AreKeyedByNodeName) {
  GraphBuilder b(BuiltinOpSet());
  const Value x = b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
  const Value y = b.EmitNamed("h.0.drop", "dropout", {x}, {{"p", 0.5}})[0];
  b.Output("loss_sum", b.Emit("sum", {y}));
  ASSERT_OK_AND_ASSIGN(const Graph graph, b.Finish());
  const int64_t key = graph.nodes[0].attrs.GetInt("key");
  EXPECT_EQ(key, static_cast<int64_t>(StableHash("h.0.drop") >> 1));
  // The gradient drops the same elements.
  ASSERT_OK_AND_ASSIGN(const Graph both, AppendBackward(BuiltinOpSet(), graph));
  const GraphNode& last = both.nodes.back();
  EXPECT_EQ(last.op, "dropout");
  EXPECT_EQ(last.attrs.GetInt("key"), key);
}

TEST(GraphBuilder, FirstError_IsKept) {
  GraphBuilder b(BuiltinOpSet());
  const Value x = b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
  const Value bad = b.Emit("add", {x, b.Parameter("y", {DType::kF32, {3}}, kNormal, true)});
  EXPECT_FALSE(bad.valid());
  b.Output("z", b.Emit("neg", {bad}));
  EXPECT_THAT(b.Finish(), IsStatus(Code::kInvalidArgument, "node 'add': add(f32[4], f32[3])"));
}

TEST(GraphBuilder, Mistakes_AreNamed) {
  {
    GraphBuilder b(BuiltinOpSet());
    b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
    b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
    EXPECT_THAT(b.Finish(), IsStatus(Code::kInvalidArgument, "two parameters are named 'x'"));
  }
  {
    GraphBuilder b(BuiltinOpSet());
    b.Emit("matmull", {b.Parameter("x", {DType::kF32, {4}}, kNormal, true)});
    EXPECT_THAT(b.Finish(), IsStatus(Code::kNotFound, "did you mean 'matmul'?"));
  }
  {
    GraphBuilder a(BuiltinOpSet()), b(BuiltinOpSet());
    b.Emit("neg", {a.Parameter("x", {DType::kF32, {4}}, kNormal, true)});
    EXPECT_THAT(b.Finish(), IsStatus(Code::kInvalidArgument, "belongs to another graph"));
  }
}

// table[tokens] + position, through a view, into a loss.
Graph Small(int64_t rows) {
  GraphBuilder b(BuiltinOpSet());
  const Value tokens = b.Input("tokens", {DType::kI32, {rows, 3}});
  const Value targets = b.Input("targets", {DType::kI32, {rows, 3}});
  const Value table = b.Parameter("table", {DType::kF32, {7, 4}}, kNormal, true);
  const Value place = b.Parameter("place", {DType::kF32, {3, 4}}, kNormal, true);
  Value x = b.Emit("add", {b.Emit("embedding", {table, tokens}), place});
  b.Output("unused", b.Emit("exp", {x}));
  x = b.Emit("reshape", {x}, {{"shape", std::vector<int64_t>{-1, 3, 4}}});
  // The table is used again, as the head.
  const Value logits = b.Emit("linear", {b.Emit("tanh", {x}), table}, {{"transpose_w", true}});
  const Values loss = b.EmitNamed("loss", "cross_entropy", {logits, targets}, {});
  b.Output("loss_sum", loss[0]);
  b.Output("count", loss[1]);
  b.Output("logits", logits);
  return *b.Finish();
}

TEST(Rebuild, OtherRows_InfersAllShapesAgain) {
  ASSERT_OK_AND_ASSIGN(const Graph graph,
                       Rebuild(BuiltinOpSet(), Small(2), {.rows = 5, .outputs = {}}));
  EXPECT_OK(ValidateGraph(BuiltinOpSet(), graph));
  ASSERT_OK_AND_ASSIGN(const Graph made, Rebuild(BuiltinOpSet(), Small(5), {}));
  EXPECT_EQ(ToString(graph), ToString(made));
}

TEST(Rebuild, WantedOutputs_DropTheRest) {
  ASSERT_OK_AND_ASSIGN(
      const Graph graph,
      Rebuild(BuiltinOpSet(), Small(2), {.outputs = {"logits"}, .drop_unused_inputs = true}));
  EXPECT_EQ(graph.outputs.size(), 1u);
  ASSERT_EQ(graph.inputs.size(), 1u);
  EXPECT_EQ(graph.inputs[0].name, "tokens");
  EXPECT_EQ(graph.nodes.size(), 5u);
  EXPECT_EQ(graph.parameters.size(), 2u);
}

TEST(AppendBackward, FanIn_EqualsDifferences) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Core> core, Core::Open({}));
  ASSERT_OK_AND_ASSIGN(const Graph graph, AppendBackward(BuiltinOpSet(), Small(2)));
  EXPECT_OK(ValidateGraph(BuiltinOpSet(), graph));
  ASSERT_OK_AND_ASSIGN(const testing::Named results, testing::RunEagerly(*core, graph, 7));
  // The tape computes the same gradients from the same rules, on its own way through the graph.
  EagerEmitter& e = core->emitter();
  const Tensor table = e.Make<float>({7, 4}, testing::SeededValue("table", 28));
  const Tensor place = e.Make<float>({3, 4}, testing::SeededValue("place", 12));
  ASSERT_OK(RequireGrad(table));
  ASSERT_OK(RequireGrad(place));
  const Tensor tokens = e.Make<int32_t>({2, 3}, testing::SeededInputIds("tokens", 6, 7));
  const Tensor targets = e.Make<int32_t>({2, 3}, testing::SeededInputIds("targets", 6, 7));
  const Value x = e.Emit("tanh", {e.Emit("add", {e.Emit("embedding", {table, tokens}), place})});
  const Value logits = e.Emit("linear", {x, table}, {{"transpose_w", true}});
  ASSERT_OK(Backward(e, e.Run("cross_entropy", {logits, targets})));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> d_table, ToVector<float>(GradOf(table)));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> d_place, ToVector<float>(GradOf(place)));
  EXPECT_EQ(results.at(GradientName("table")), d_table);
  EXPECT_EQ(results.at(GradientName("place")), d_place);
}

TEST(AppendBackward, WhatCannotBe_IsNamed) {
  {
    GraphBuilder b(BuiltinOpSet());
    const Value x = b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
    b.Parameter("idle", {DType::kF32, {4}}, kNormal, true);
    b.Output("loss_sum", b.Emit("sum", {x}));
    EXPECT_THAT(AppendBackward(BuiltinOpSet(), *b.Finish()),
                IsStatus(Code::kInvalidArgument, "parameter 'idle' does not influence loss_sum"));
  }
  {
    GraphBuilder b(BuiltinOpSet());
    b.Output("y", b.Emit("sum", {b.Parameter("x", {DType::kF32, {4}}, kNormal, true)}));
    EXPECT_THAT(AppendBackward(BuiltinOpSet(), *b.Finish()),
                IsStatus(Code::kInvalidArgument, "no output 'loss_sum'"));
  }
  {
    OpSet ops;
    ops.Add({.name = "blunt", .doc = "", .inputs = {"x"}, .infer = [](const InferArgs& a) {
               return StatusOr<std::vector<TensorMeta>>({{a.in[0].dtype, {}}});
             }});
    ops.Add(*BuiltinOpSet().Find("fill"));
    GraphBuilder b(ops);
    const Value x = b.Parameter("x", {DType::kF32, {4}}, kNormal, true);
    b.Output("loss_sum", b.EmitNamed("h.0.blunt", "blunt", {x}, {})[0]);
    EXPECT_THAT(AppendBackward(ops, *b.Finish()),
                IsStatus(Code::kUnimplemented, "node 'h.0.blunt': op 'blunt' has no gradient"));
  }
}

}  // namespace
}  // namespace weft
