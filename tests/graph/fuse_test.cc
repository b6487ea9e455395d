// Fusion by rule: every row fires where it should, computes the same, and stays away where it must.
#include "fabric/graph/fuse.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "fabric/graph/backward.h"
#include "fabric/graph/builder.h"
#include "fabric/graph/rebuild.h"
#include "fabric/graph/validate.h"
#include "tests/graph/graph_run.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

constexpr int64_t kVocab = 10;
constexpr double kTolerance = 2e-5;

bool HasOp(const Graph& graph, const std::string& op) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&op](const GraphNode& n) { return n.op == op; });
}

Value Matrix(GraphBuilder& b, const std::string& name, Shape shape) {
  return b.Parameter(name, {DType::kF32, shape}, {InitRule::Kind::kNormal, 1}, true);
}

// loss_sum out of any value: its elements weighted by a parameter, so that its gradient is not all
// ones.
void Weigh(GraphBuilder& b, const Value& y) {
  const Value weight = Matrix(b, "weigh", y.shape());
  b.Output("loss_sum", b.Emit("sum", {b.Emit("mul", {y, weight})}));
}

struct Case {
  const char* rule;   // FusionRule::name
  const char* fused;  // the op that appears
  const char* gone;   // the op that disappears
  std::function<void(GraphBuilder&)> build;
};

void AddNorm(GraphBuilder& b, const char* norm, bool bias) {
  const Value x = Matrix(b, "x", {3, 8}), r = Matrix(b, "r", {3, 8});
  const Value s = b.Emit("add", {x, r});
  Values in = {s, Matrix(b, "w", {8})};
  if (bias) in.push_back(Matrix(b, "bias", {8}));
  const Value y = b.EmitAll(norm, in, {{"eps", 1e-5}})[0];
  Weigh(b, b.Emit("add", {b.Emit("tanh", {y}), s}));
}

void LinearGelu(GraphBuilder& b, bool bias) {
  Values in = {Matrix(b, "x", {3, 8}), Matrix(b, "w", {8, 5})};
  if (bias) in.push_back(Matrix(b, "bias", {5}));
  Weigh(b, b.Emit("gelu", {b.Emit("linear", in)}));
}

void Mlp(GraphBuilder& b, bool transposed) {
  const Value h = b.Emit("linear", {Matrix(b, "x", {2, 3, 8}), Matrix(b, "up", {8, 5})});
  const Value down = Matrix(b, "down", transposed ? Shape{8, 5} : Shape{5, 8});
  Weigh(b, b.Emit("linear", {b.Emit("gelu", {h}), down, Matrix(b, "bias", {8})},
                  {{"transpose_w", transposed}}));
}

void MlpWithBias(GraphBuilder& b) {
  const Value x = Matrix(b, "x", {2, 3, 8}), bias = Matrix(b, "up_bias", {5});
  const Value h = b.Emit("linear", {x, Matrix(b, "up", {8, 5}), bias});
  Weigh(b, b.Emit("linear", {b.Emit("gelu", {h}), Matrix(b, "down", {5, 8})}));
}

void NormOfBiased(GraphBuilder& b, const std::string& norm) {
  const Value x = Matrix(b, "x", {2, 3, 8});
  const Value y = b.Emit("linear", {x, Matrix(b, "w", {8, 8}), Matrix(b, "bias", {8})});
  Weigh(b, b.EmitAll(norm, {x, y, Matrix(b, "weight", {8})}, {})[0]);
}

void RotaryAttention(GraphBuilder& b) {
  const Value qkv = Matrix(b, "qkv", {2, 6, 24});
  const Value rotated = b.Emit("rotary", {qkv}, {{"heads", int64_t{2}}, {"base", 10000.0}});
  Weigh(b, b.Emit("attention", {rotated}, {{"heads", int64_t{2}}, {"causal", true}}));
}

void HeadIntoLoss(GraphBuilder& b, bool transposed) {
  const Value x = Matrix(b, "x", {3, 4, 8});
  const Value w = Matrix(b, "w", transposed ? Shape{kVocab, 8} : Shape{8, kVocab});
  const Value targets = b.Input("targets", {DType::kI32, {3, 4}});
  const Value logits = b.Emit("linear", {x, w}, {{"transpose_w", transposed}});
  const Values loss = b.EmitAll("cross_entropy", {logits, targets}, {});
  b.Output("loss_sum", loss[0]);
  b.Output("count", loss[1]);
  b.Output("correct", loss[2]);
}

const Case kCases[] = {
    {"residual into rms norm", "add_rms_norm", "rms_norm",
     [](GraphBuilder& b) { AddNorm(b, "rms_norm", false); }},
    {"residual into layer norm", "add_layer_norm", "layer_norm",
     [](GraphBuilder& b) { AddNorm(b, "layer_norm", false); }},
    {"residual into layer norm", "add_layer_norm", "layer_norm",
     [](GraphBuilder& b) { AddNorm(b, "layer_norm", true); }},
    {"gelu of a product", "linear_gelu", "gelu", [](GraphBuilder& b) { LinearGelu(b, false); }},
    {"gelu of a product", "linear_gelu", "gelu", [](GraphBuilder& b) { LinearGelu(b, true); }},
    {"product into gelu's gradient", "linear_grad_gelu", "gelu_grad",
     [](GraphBuilder& b) { Mlp(b, false); }},
    {"product into gelu's gradient", "linear_grad_gelu", "gelu_grad",
     [](GraphBuilder& b) { Mlp(b, true); }},
    {"bias gradient beside gelu's", "linear_grad_gelu_bias", "linear_grad_gelu",
     [](GraphBuilder& b) { MlpWithBias(b); }},
    {"bias gradient beside rms norm's", "rms_norm_grad_sums", "rms_norm_grad",
     [](GraphBuilder& b) { NormOfBiased(b, "add_rms_norm"); }},
    {"bias gradient beside layer norm's", "layer_norm_grad_sums", "layer_norm_grad",
     [](GraphBuilder& b) { NormOfBiased(b, "add_layer_norm"); }},
    {"rotary into attention", "attention", "rotary", RotaryAttention},
    {"head into loss", "linear_cross_entropy", "cross_entropy",
     [](GraphBuilder& b) { HeadIntoLoss(b, false); }},
    {"head into loss", "linear_cross_entropy", "cross_entropy",
     [](GraphBuilder& b) { HeadIntoLoss(b, true); }},
};

StatusOr<Graph> Build(const std::function<void(GraphBuilder&)>& build) {
  GraphBuilder b(BuiltinOpSet());
  build(b);
  return b.Finish();
}

// As a planner makes a training graph.
StatusOr<Graph> FusedTraining(const Graph& forward) {
  const OpSet& ops = BuiltinOpSet();
  ASSIGN_OR_RETURN(Graph graph, Fuse(ops, forward, Purpose::kTraining));
  ASSIGN_OR_RETURN(graph, AppendBackward(ops, std::move(graph)));
  ASSIGN_OR_RETURN(graph, Rebuild(ops, DropUnitScales(std::move(graph)), {}));
  ASSIGN_OR_RETURN(graph, Fuse(ops, std::move(graph), Purpose::kTraining, FusionStage::kBackward));
  return Rebuild(ops, graph, {});
}

TEST(Fuse, EveryRule_ComputesTheSameForwardAndBackward) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Core> core, Core::Open({}));
  std::set<std::string> tried;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.fused);
    tried.insert(c.rule);
    ASSERT_OK_AND_ASSIGN(const Graph plain, Build(c.build));
    ASSERT_OK_AND_ASSIGN(const Graph fused, FusedTraining(plain));
    EXPECT_TRUE(HasOp(fused, c.fused));
    EXPECT_FALSE(HasOp(fused, c.gone));
    ASSERT_OK(ValidateGraph(BuiltinOpSet(), fused));
    ASSERT_OK_AND_ASSIGN(const Graph expected, AppendBackward(BuiltinOpSet(), plain));
    ASSERT_OK_AND_ASSIGN(const testing::Named got, testing::RunEagerly(*core, fused, kVocab));
    ASSERT_OK_AND_ASSIGN(const testing::Named want, testing::RunEagerly(*core, expected, kVocab));
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, values] : want) {
      EXPECT_LT(testing::LargestDifference(got.at(name), values), kTolerance) << name;
    }
  }
  for (const FusionRule& rule : FusionRules()) EXPECT_EQ(tried.count(rule.name), 1u) << rule.name;
}

TEST(Fuse, WhereARuleDoesNotFit_NothingChanges) {
  const struct {
    const char* why;
    const char* never;
    Purpose purpose;
    std::function<void(GraphBuilder&)> build;
  } rows[] = {
      {"the residual is broadcast", "add_rms_norm", Purpose::kTraining,
       [](GraphBuilder& b) {
         const Value s = b.Emit("add", {Matrix(b, "x", {3, 8}), Matrix(b, "r", {8})});
         Weigh(b, b.Emit("rms_norm", {s, Matrix(b, "w", {8})}));
       }},
      {"the weight depends on the sum", "add_rms_norm", Purpose::kTraining,
       [](GraphBuilder& b) {
         const Value s = b.Emit("add", {Matrix(b, "x", {3, 8}), Matrix(b, "r", {3, 8})});
         const Value w = b.Emit("mean", {s}, {{"axes", std::vector<int64_t>{0}}});
         Weigh(b, b.Emit("rms_norm", {s, w}));
       }},
      {"evaluation wants no gradients", "linear_cross_entropy", Purpose::kInference,
       [](GraphBuilder& b) { HeadIntoLoss(b, false); }},
      {"the logits are wanted too", "linear_cross_entropy", Purpose::kTraining,
       [](GraphBuilder& b) {
         const Value logits =
             b.Emit("linear", {Matrix(b, "x", {4, 8}), Matrix(b, "w", {8, kVocab})});
         const Value targets = b.Input("targets", {DType::kI32, {4}});
         b.Output("loss_sum", b.Emit("cross_entropy", {logits, targets}));
         b.Output("logits", logits);
       }},
      {"the head has a bias", "linear_cross_entropy", Purpose::kTraining,
       [](GraphBuilder& b) {
         const Value logits = b.Emit("linear", {Matrix(b, "x", {4, 8}), Matrix(b, "w", {8, kVocab}),
                                                Matrix(b, "b", {kVocab})});
         const Value targets = b.Input("targets", {DType::kI32, {4}});
         b.Output("loss_sum", b.Emit("cross_entropy", {logits, targets}));
       }},
  };
  for (const auto& row : rows) {
    ASSERT_OK_AND_ASSIGN(const Graph plain, Build(row.build));
    ASSERT_OK_AND_ASSIGN(const Graph fused, Fuse(BuiltinOpSet(), plain, row.purpose));
    EXPECT_FALSE(HasOp(fused, row.never)) << row.why;
    EXPECT_EQ(fused.nodes.size(), plain.nodes.size()) << row.why;
  }
}

TEST(Fuse, RotatedUsedTwice_RotaryStays) {
  ASSERT_OK_AND_ASSIGN(
      const Graph plain, Build([](GraphBuilder& b) {
        const Value qkv = Matrix(b, "qkv", {2, 6, 24});
        const Value rotated = b.Emit("rotary", {qkv}, {{"heads", int64_t{2}}, {"base", 10000.0}});
        b.Output("y", b.Emit("attention", {rotated}, {{"heads", int64_t{2}}}));
        b.Output("rotated", rotated);
      }));
  ASSERT_OK_AND_ASSIGN(const Graph fused, Fuse(BuiltinOpSet(), plain, Purpose::kTraining));
  EXPECT_TRUE(HasOp(fused, "rotary"));
}

TEST(Fuse, GradientBeforeGeluUsedTwice_ProductStays) {
  ASSERT_OK_AND_ASSIGN(const Graph plain, Build([](GraphBuilder& b) {
                         const Value h = Matrix(b, "h", {3, 8});
                         const Value y = b.Emit("gelu", {h});
                         const Value z = b.Emit("add", {y, Matrix(b, "r", {3, 8})});
                         Weigh(b, b.Emit("linear", {z, Matrix(b, "w", {8, 5})}));
                       }));
  // The gradient of z is that of y and of r.
  ASSERT_OK_AND_ASSIGN(const Graph fused, FusedTraining(plain));
  EXPECT_TRUE(HasOp(fused, "gelu_grad"));
  EXPECT_FALSE(HasOp(fused, "linear_grad_gelu"));
}

TEST(DropUnitScales, ScaleByOne_IsDropped) {
  ASSERT_OK_AND_ASSIGN(
      const Graph plain, Build([](GraphBuilder& b) {
        const Value one = b.Emit("fill", {}, {{"shape", std::vector<int64_t>{}}, {"value", 1.0}});
        const Value two = b.Emit("fill", {}, {{"shape", std::vector<int64_t>{}}, {"value", 2.0}});
        const Value x = Matrix(b, "x", {4});
        b.Output("y", b.Emit("scale_by", {b.Emit("scale_by", {x, one}), two}));
      }));
  ASSERT_OK_AND_ASSIGN(const Graph dropped, Rebuild(BuiltinOpSet(), DropUnitScales(plain), {}));
  EXPECT_EQ(dropped.nodes.size(), 2u);  // fill of 2, scale_by
}

}  // namespace
}  // namespace weft
