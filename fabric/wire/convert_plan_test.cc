#include "fabric/wire/convert_plan.h"

#include <cmath>
#include <functional>
#include <string>

#include "gtest/gtest.h"

#include "fabric/graph/print.h"
#include "fabric/wire/convert_graph.h"
#include "fabric/wire/convert_types.h"

namespace weft::wire {
namespace {

Graph EveryKindOfGraph() {
  Graph graph;
  graph.values = {
      {DType::kF32, {2, 3}}, {DType::kI32, {4}}, {DType::kBF16, {}}, {DType::kF64, {0, 7}}};
  graph.parameters = {{"w", 0, {InitRule::Kind::kNormal, 0.02}, true},
                      {"b", 2, {InitRule::Kind::kUniform, 0.5}, false}};
  graph.inputs = {{"tokens", 1}};
  graph.nodes = {{"h.0",
                  "op",
                  {0, 1},
                  {3},
                  {{"flag", true},
                   {"n", int64_t{-7}},
                   {"x", 0.1},
                   {"s", std::string("text")},
                   {"list", std::vector<int64_t>{1, -1}},
                   {"none", std::vector<int64_t>{}}}}};
  graph.outputs = {{"loss_sum", 3}};
  return graph;
}

Plan EveryKindOfPlan() {
  Plan plan;
  Program& p = plan.program;
  p.parameters = {{"w", {2, 3}, 0, {InitRule::Kind::kOnes, 0}, true}, {"b", {}, 64, {}, false}};
  p.flat_elements = 128;
  p.states = {"m", "v"};
  p.stats = {"loss_sum", "count"};
  p.inputs = {{"tokens", {DType::kI32, {5, 64}}}};
  p.eval_inputs = {{"tokens", {DType::kI32, {16, 64}}}};
  p.predict_inputs = {{"tokens", {DType::kI32, {1, 64}}}};
  const Operand strided = {Space::kArena, 0, 64, {DType::kF32, {3, 2}}, {1, 3}};
  const Operand scalar = {Space::kStats, 0, 4, {DType::kF32, {}}, {}};
  p.train.calls = {{"op", "default", "node", {{"a", 1.5}}, {strided}, {scalar}}};
  p.train.arena_bytes = 512;
  p.update.calls = {{"sgd", "k", "u", {}, {{Space::kStep, 0, 0, {DType::kI64, {}}, {}}}, {scalar}}};
  p.predict.calls = p.train.calls;
  p.logits = strided;
  p.low_copy = true;
  const Operand low = {Space::kLow, 0, 128, {DType::kBF16, {2}}, {1}};
  p.refresh.calls = {{"cast", "default", "refresh", {}, {scalar}, {low}}};
  plan.numerics = {"cpu", "avx2", {{"onednn", "2.6.3"}}, "abc", 132};
  plan.batch = 60, plan.lanes = 12, plan.ranks = 2;
  plan.shares = {{0, 6}, {6, 12}};
  plan.eval_batch = 16;
  plan.reduce = ReduceMode::kRing;
  plan.estimate = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0.5, 10};
  plan.reason = "because";
  plan.precision = ComputePrecision::kBf16;
  return plan;
}

TEST(ConvertGraph, RoundTrip_KeepsEverything) {
  const Graph graph = EveryKindOfGraph();
  const StatusOr<Graph> back = FromProto(ToProto(graph));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToString(*back), ToString(graph));
  EXPECT_EQ(back->nodes[0].attrs, graph.nodes[0].attrs);
  EXPECT_EQ(back->parameters[0].init, graph.parameters[0].init);
}

TEST(ConvertPlan, RoundTrip_KeepsEverything) {
  const Plan plan = EveryKindOfPlan();
  const v1::Plan proto = ToProto(plan);
  const StatusOr<Plan> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToString(back->program), ToString(plan.program));
  EXPECT_EQ(back->program.logits.strides, plan.program.logits.strides);
  EXPECT_EQ(back->numerics, plan.numerics);
  EXPECT_EQ(back->shares, plan.shares);
  EXPECT_EQ(back->reduce, plan.reduce);
  EXPECT_EQ(back->program.low_copy, plan.program.low_copy);
  EXPECT_EQ(back->precision, plan.precision);
  EXPECT_EQ(back->estimate.low_bytes, plan.estimate.low_bytes);
  EXPECT_EQ(ToProto(*back).SerializeAsString().size(), proto.SerializeAsString().size());
  EXPECT_EQ(ToProto(*back).estimate().SerializeAsString(), proto.estimate().SerializeAsString());
}

TEST(ConvertGraph, HostileInput_IsRefused) {
  const struct {
    const char* says;
    std::function<void(v1::Graph*)> spoil;
  } rows[] = {
      {"value 0: there is no dtype 0", [](v1::Graph* g) { g->mutable_values(0)->clear_dtype(); }},
      {"there is no dtype 99",
       [](v1::Graph* g) { g->mutable_values(0)->set_dtype(static_cast<v1::DataType>(99)); }},
      {"there is no dtype -1",
       [](v1::Graph* g) { g->mutable_values(0)->set_dtype(static_cast<v1::DataType>(-1)); }},
      {"is negative", [](v1::Graph* g) { g->mutable_values(0)->set_dims(0, -1); }},
      {"exceeds", [](v1::Graph* g) { g->mutable_values(0)->set_dims(0, int64_t{1} << 62); }},
      {"rank 12",
       [](v1::Graph* g) {
         for (int i = 0; i < 10; ++i) g->mutable_values(0)->add_dims(1);
       }},
      {"there is no init 7",
       [](v1::Graph* g) { g->mutable_parameters(0)->set_init(static_cast<v1::InitKind>(7)); }},
      {"init_scale is nan",
       [](v1::Graph* g) { g->mutable_parameters(0)->set_init_scale(std::nan("")); }},
      {"node 'h.0': attribute 'x': has no value",
       [](v1::Graph* g) { (*g->mutable_nodes(0)->mutable_attributes())["x"].clear_value(); }},
  };
  for (const auto& row : rows) {
    v1::Graph proto = ToProto(EveryKindOfGraph());
    row.spoil(&proto);
    const Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << status;
  }
}

TEST(ConvertPlan, HostileInput_IsRefused) {
  const struct {
    const char* says;
    std::function<void(v1::Plan*)> spoil;
  } rows[] = {
      {"there is no space 0",
       [](v1::Plan* p) {
         p->mutable_program()->mutable_train()->mutable_calls(0)->mutable_inputs(0)->clear_space();
       }},
      {"there is no space 9",
       [](v1::Plan* p) {
         p->mutable_program()->mutable_train()->mutable_calls(0)->mutable_inputs(0)->set_space(
             static_cast<v1::Space>(9));
       }},
      {"3 strides for",
       [](v1::Plan* p) {
         p->mutable_program()->mutable_train()->mutable_calls(0)->mutable_inputs(0)->add_strides(1);
       }},
      {"does not continue at lane 6", [](v1::Plan* p) { p->mutable_shares(1)->set_begin(5); }},
      {"shares end at lane 11 of 12", [](v1::Plan* p) { p->mutable_shares(1)->set_end(11); }},
      {"2 ranks with 1 shares", [](v1::Plan* p) { p->mutable_shares()->RemoveLast(); }},
      {"0 lanes", [](v1::Plan* p) { p->set_lanes(0); }},
      {"there is no precision 9",
       [](v1::Plan* p) { p->set_precision(static_cast<v1::Precision>(9)); }},
      {"there is no reduce mode 9",
       [](v1::Plan* p) { p->set_reduce(static_cast<v1::ReduceMode>(9)); }},
      {"parameter 'w': dimension 0 is negative",
       [](v1::Plan* p) { p->mutable_program()->mutable_parameters(0)->set_dims(0, -3); }},
  };
  for (const auto& row : rows) {
    v1::Plan proto = ToProto(EveryKindOfPlan());
    row.spoil(&proto);
    const Status status = FromProto(proto).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace weft::wire
