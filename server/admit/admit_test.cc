#include "server/admit/admit.h"

#include <cmath>
#include <functional>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

#include "fabric/base/error_detail.h"
#include "fabric/graph/builder.h"
#include "fabric/wire/convert_graph.h"

namespace weft::admit {
namespace {

v1::JobSpec Parse(const std::string& text) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

v1::JobSpec Small() {
  return Parse(R"(
    name: "reversal"
    model { gpt { layers: 1 heads: 2 dim: 8 context: 64 } }
    data { reverse {} }
    train { steps: 10 batch: 8 optimizer { adamw { lr: 0.1 } } }
    ranks { max: 2 })");
}

// tokens, targets [rows, 4] -> mean-free logits of 5 classes out of an embedding.
Graph ClientGraph(int64_t rows, const std::string& reshape_rows = "-1") {
  GraphBuilder b(BuiltinOpSet());
  const Value tokens = b.Input("tokens", {DType::kI32, {rows, 4}});
  const Value targets = b.Input("targets", {DType::kI32, {rows, 4}});
  const Value table =
      b.Parameter("table", {DType::kF32, {5, 5}}, {InitRule::Kind::kNormal, 1}, true);
  Value x = b.Emit("embedding", {table, tokens});
  const int64_t lead = reshape_rows == "-1" ? -1 : rows;
  x = b.Emit("reshape", {x}, {{"shape", std::vector<int64_t>{lead, 4, 5}}});
  const Values loss = b.EmitNamed("loss", "cross_entropy", {x, targets}, {});
  b.Output("loss_sum", loss[0]);
  b.Output("count", loss[1]);
  const StatusOr<Graph> graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *graph;
}

v1::JobSpec OfGraph(const Graph& graph) {
  v1::JobSpec spec = Small();
  *spec.mutable_model()->mutable_graph() = wire::ToProto(graph);
  *spec.mutable_data() = Parse("data { text { path: 'x' } }").data();
  return spec;
}

TEST(Admit, SmallJob_GetsItsDefaults) {
  const StatusOr<v1::JobSpec> spec = Admit(BuiltinOpSet(), Small());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::JobSpec expected = Parse(R"(
    name: "reversal"
    model { gpt { layers: 1 heads: 2 dim: 8 context: 64 vocab: 36 position: POSITION_LEARNED norm: NORM_LAYER
                  tied: true bias: false init_scale: 0.02 init: INIT_NORMAL } }
    data { reverse { symbols: 32 max_length: 16 eval_samples: 1000 } }
    train { steps: 10 batch: 8 precision: PRECISION_FP32 schedule { decay: DECAY_CONSTANT min_lr: 0 }
            optimizer { adamw { lr: 0.1 betas: [0.9, 0.999] eps: 1e-8 weight_decay: 0.01 } } }
    ranks { min: 1 max: 2 } lanes: 2 reduce: REDUCE_MODE_ORDERED transport: TRANSPORT_AUTO
    checkpoint { keep: 2 resume: RESUME_NEVER } eval {} determinism: DETERMINISM_BITWISE)");
  EXPECT_EQ(spec->DebugString(), expected.DebugString());
  // Admitting what was admitted changes nothing.
  EXPECT_EQ(Admit(BuiltinOpSet(), *spec)->DebugString(), expected.DebugString());
}

TEST(Admit, Text_FillsVocabAndValidation) {
  v1::JobSpec spec = Small();
  *spec.mutable_data() = Parse("data { text { path: 'input.txt' } }").data();
  const StatusOr<v1::JobSpec> admitted = Admit(BuiltinOpSet(), spec);
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  EXPECT_EQ(admitted->model().gpt().vocab(), 256);
  EXPECT_EQ(admitted->data().text().tokens(), v1::TOKENS_BYTES);
  EXPECT_EQ(admitted->data().text().validation(), 0.1);
}

struct Row {
  const char* says;
  std::function<void(v1::JobSpec*)> spoil;
};

v1::AdamW* AdamWOf(v1::JobSpec* s) {
  return s->mutable_train()->mutable_optimizer()->mutable_adamw();
}
v1::GptModel* GptOf(v1::JobSpec* s) { return s->mutable_model()->mutable_gpt(); }

TEST(Admit, WrongFields_AreNamed) {
  const Row rows[] = {
      {"name: is missing", [](v1::JobSpec* s) { s->clear_name(); }},
      {"name: wants at most 63", [](v1::JobSpec* s) { s->set_name("Big Name"); }},
      {"name: wants at most 63", [](v1::JobSpec* s) { s->set_name("../up"); }},
      {"name: wants at most 63", [](v1::JobSpec* s) { s->set_name(std::string(64, 'a')); }},
      {"train.batch: 10 does not divide into 4 lanes; 8 or 12 would",
       [](v1::JobSpec* s) { s->set_lanes(4), s->mutable_train()->set_batch(10); }},
      {"(lanes are ranks.max unless set)",
       [](v1::JobSpec* s) { s->mutable_train()->set_batch(7); }},
      {"train.batch: is missing", [](v1::JobSpec* s) { s->mutable_train()->clear_batch(); }},
      {"train.batch: is -4, wants 1 to", [](v1::JobSpec* s) { s->mutable_train()->set_batch(-4); }},
      {"train.steps: is missing", [](v1::JobSpec* s) { s->mutable_train()->clear_steps(); }},
      {"train.steps: is -1", [](v1::JobSpec* s) { s->mutable_train()->set_steps(-1); }},
      {"train: is missing", [](v1::JobSpec* s) { s->clear_train(); }},
      {"train.optimizer: is missing; choose sgd or adamw",
       [](v1::JobSpec* s) { s->mutable_train()->clear_optimizer(); }},
      {"train.optimizer.adamw.lr: is 0, wants a number above 0",
       [](v1::JobSpec* s) { AdamWOf(s)->clear_lr(); }},
      {"train.optimizer.adamw.lr: is nan",
       [](v1::JobSpec* s) { AdamWOf(s)->set_lr(std::nan("")); }},
      {"train.optimizer.adamw.betas: has 1 values, wants 2",
       [](v1::JobSpec* s) { AdamWOf(s)->add_betas(0.9); }},
      {"train.optimizer.adamw.betas: has 1, wants 0 <= beta < 1",
       [](v1::JobSpec* s) { AdamWOf(s)->add_betas(0.9), AdamWOf(s)->add_betas(1); }},
      {"train.optimizer.adamw.eps: is 0", [](v1::JobSpec* s) { AdamWOf(s)->set_eps(0); }},
      {"train.optimizer.adamw.weight_decay: is -1",
       [](v1::JobSpec* s) { AdamWOf(s)->set_weight_decay(-1); }},
      {"train.clip_norm: is -1", [](v1::JobSpec* s) { s->mutable_train()->set_clip_norm(-1); }},
      {"train.schedule.warmup: is 10, which leaves none of 10 steps",
       [](v1::JobSpec* s) {
         s->mutable_train()->mutable_schedule()->set_warmup(10);
         s->mutable_train()->mutable_schedule()->set_decay(v1::DECAY_COSINE);
       }},
      {"train.schedule.min_lr: is 1, above the learning rate 0.1",
       [](v1::JobSpec* s) { s->mutable_train()->mutable_schedule()->set_min_lr(1); }},
      {"train.precision: there is no choice 9",
       [](v1::JobSpec* s) { s->mutable_train()->set_precision(static_cast<v1::Precision>(9)); }},
      {"ranks.min: is -1", [](v1::JobSpec* s) { s->mutable_ranks()->set_min(-1); }},
      {"ranks.max: is 2, below ranks.min 3",
       [](v1::JobSpec* s) { s->mutable_ranks()->set_min(3); }},
      {"lanes: is 1, below ranks.max 2", [](v1::JobSpec* s) { s->set_lanes(1); }},
      {"lanes: is 70000, wants 1 to 65536", [](v1::JobSpec* s) { s->set_lanes(70000); }},
      {"data: is missing; choose text, tokens, cifar10 or reverse",
       [](v1::JobSpec* s) { s->clear_data(); }},
      {"data.text.path: is missing", [](v1::JobSpec* s) { s->mutable_data()->mutable_text(); }},
      {"data.text.validation: is 1",
       [](v1::JobSpec* s) { s->mutable_data()->mutable_text()->set_validation(1); }},
      {"data.reverse.max_length: is 40: 2 * max_length + 3 = 83 tokens do not fit into a context "
       "of 64",
       [](v1::JobSpec* s) { s->mutable_data()->mutable_reverse()->set_max_length(40); }},
      {"model: is missing; choose gpt, vit or graph", [](v1::JobSpec* s) { s->clear_model(); }},
      {"model.gpt.heads: 3 does not divide dim 8", [](v1::JobSpec* s) { GptOf(s)->set_heads(3); }},
      {"model.gpt.heads: rotary positions need an even head width, dim / heads is 1",
       [](v1::JobSpec* s) { GptOf(s)->set_heads(8), GptOf(s)->set_position(v1::POSITION_ROTARY); }},
      {"model.gpt.layers: is 0, wants at least 1",
       [](v1::JobSpec* s) { GptOf(s)->clear_layers(); }},
      {"model.gpt.dim: is 4611686018427387904",
       [](v1::JobSpec* s) { GptOf(s)->set_dim(int64_t{1} << 62); }},
      {"model.gpt: parameter 'wte'",
       [](v1::JobSpec* s) { GptOf(s)->set_vocab(1 << 30), GptOf(s)->set_dim(1 << 20); }},
      {"model.gpt.vocab: is 20, the data has 36 tokens",
       [](v1::JobSpec* s) { GptOf(s)->set_vocab(20); }},
      {"model.gpt.vocab: is missing, and only the file can tell",
       [](v1::JobSpec* s) {
         s->mutable_data()->mutable_text()->set_path("x");
         s->mutable_data()->mutable_text()->set_tokens(v1::TOKENS_CHARACTERS);
       }},
      {"instruction_set: there is no 'avx3'; did you mean",
       [](v1::JobSpec* s) { s->set_instruction_set("avx3"); }},
      {"device: there is no 'gpu'; choose cpu or cuda",
       [](v1::JobSpec* s) { s->set_device("gpu"); }},
      {"instruction_set: is of a CPU, and device is cuda",
       [](v1::JobSpec* s) { s->set_device("cuda"), s->set_instruction_set("avx2"); }},
      {"determinism: there is no choice 7",
       [](v1::JobSpec* s) { s->set_determinism(static_cast<v1::Determinism>(7)); }},
      {"train.precision: is bf16, which runs on GPUs only, and the job asks for a CPU by its "
       "device; set precision: fp32, or device: cuda",
       [](v1::JobSpec* s) {
         s->set_device("cpu"), s->mutable_train()->set_precision(v1::PRECISION_BF16);
       }},
      {"train.precision: is tf32, which runs on GPUs only, and the job asks for a CPU by its "
       "instruction_set",
       [](v1::JobSpec* s) {
         s->set_instruction_set("avx2"), s->mutable_train()->set_precision(v1::PRECISION_TF32);
       }},
      {"train.stochastic_rounding: is of bf16 parameters, and train.precision is fp32",
       [](v1::JobSpec* s) { s->mutable_train()->set_stochastic_rounding(true); }},
      {"threads: is -1", [](v1::JobSpec* s) { s->set_threads(-1); }},
      {"checkpoint.every: is -5", [](v1::JobSpec* s) { s->mutable_checkpoint()->set_every(-5); }},
      {"checkpoint.keep: is -1", [](v1::JobSpec* s) { s->mutable_checkpoint()->set_keep(-1); }},
      {"profile.steps: is 1001, wants 1 to 1000",
       [](v1::JobSpec* s) { s->mutable_profile()->set_steps(1001); }},
      {"profile.after: is -1", [](v1::JobSpec* s) { s->mutable_profile()->set_after(-1); }},
      {"eval.every: is -1", [](v1::JobSpec* s) { s->mutable_eval()->set_every(-1); }},
      {"train: a sampling job has none",
       [](v1::JobSpec* s) { s->mutable_sample()->set_checkpoint("x"); }},
      {"data: a sampling job writes text, and this is no text",
       [](v1::JobSpec* s) {
         s->clear_train();
         s->mutable_sample()->set_checkpoint("x");
       }},
      {"device: is cuda, a sampling job runs on the CPU",
       [](v1::JobSpec* s) { s->mutable_sample()->set_checkpoint("x"), s->set_device("cuda"); }},
      {"sample.checkpoint: is missing", [](v1::JobSpec* s) { s->mutable_sample(); }},
  };
  for (const Row& row : rows) {
    v1::JobSpec spec = Small();
    row.spoil(&spec);
    const Status status = Admit(BuiltinOpSet(), spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << row.says << "\n"
                                                                               << status;
    ASSERT_TRUE(GetErrorDetail(status).has_value()) << row.says;
    EXPECT_EQ(GetErrorDetail(status)->action, ErrorAction::kFixInput);
  }
}

v1::JobSpec Vit() {
  v1::JobSpec spec = Small();
  *spec.mutable_model() = Parse("model { vit { layers: 1 heads: 2 dim: 8 } }").model();
  *spec.mutable_data() = Parse("data { cifar10 { path: 'images' } }").data();
  return spec;
}

TEST(Admit, VisionJob_GetsItsDefaults) {
  const StatusOr<v1::JobSpec> spec = Admit(BuiltinOpSet(), Vit());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::JobSpec expected = Parse(R"(
    model { vit { layers: 1 heads: 2 dim: 8 image: 32 patch: 4 classes: 10 class_tokens: 1 norm: NORM_LAYER
                  qkv_bias: true init_scale: 0.02 } }
    data { cifar10 { path: 'images' augment: true } })");
  EXPECT_EQ(spec->model().DebugString(), expected.model().DebugString());
  EXPECT_EQ(spec->data().DebugString(), expected.data().DebugString());
  EXPECT_EQ(Admit(BuiltinOpSet(), *spec)->DebugString(), spec->DebugString());
  v1::JobSpec rms = Vit();
  rms.mutable_model()->mutable_vit()->set_norm(v1::NORM_RMS);
  EXPECT_FALSE(Admit(BuiltinOpSet(), rms)->model().vit().qkv_bias());
}

TEST(Admit, BytePairsAndTokenFiles_FillVocabAndEvaluation) {
  v1::JobSpec spec = Small();
  *spec.mutable_data() = Parse("data { text { path: 'x' tokens: TOKENS_BPE vocab: 300 } }").data();
  const StatusOr<v1::JobSpec> text = Admit(BuiltinOpSet(), spec);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->model().gpt().vocab(), 300);
  *spec.mutable_data() = Parse("data { tokens { path: 'x' } }").data();
  spec.mutable_model()->mutable_gpt()->set_vocab(50257);
  const StatusOr<v1::JobSpec> tokens = Admit(BuiltinOpSet(), spec);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->data().tokens().eval_samples(), 1000);
}

TEST(Admit, DataOrModelThatDoesNotFit_IsNamed) {
  const auto data = [](const std::string& text) {
    return [text](v1::JobSpec* s) { *s->mutable_data() = Parse("data { " + text + " }").data(); };
  };
  const auto vit = [](const std::string& text) {
    return [text](v1::JobSpec* s) {
      *s = Vit();
      s->MergeFrom(Parse("model { vit { " + text + " } }"));
    };
  };
  const struct {
    std::string says;
    std::function<void(v1::JobSpec*)> spoil;
  } rows[] = {
      {"data.text.vocab: is missing; with tokens: bpe it says how many to learn\n"
       "model.gpt.vocab: is missing, and only the file can tell: set it to the number of distinct "
       "characters (`weft` fills it in from the file)",
       data("text { path: 'x' tokens: TOKENS_BPE }")},
      {"data.text.vocab: is 256, wants 257 to 65536",
       data("text { path: 'x' tokens: TOKENS_BPE vocab: 256 }")},
      {"data.text.vocab: is for tokens: bpe alone", data("text { path: 'x' vocab: 300 }")},
      {"model.gpt.vocab: is missing, and token files do not tell: set it above their greatest id "
       "(GPT-2's: 50257, or 50304 for speed)",
       data("tokens { path: 'x' }")},
      {"data.tokens.eval_samples: is -1, wants 1 to 1073741824",
       [](v1::JobSpec* s) {
         *s->mutable_data() = Parse("data { tokens { path: 'x' eval_samples: -1 } }").data();
         s->mutable_model()->mutable_gpt()->set_vocab(50257);
       }},
      {"data.cifar10.path: is missing",
       [](v1::JobSpec* s) {
         *s = Vit();
         s->mutable_data()->mutable_cifar10()->clear_path();
       }},
      {"data.cifar10: has images, and model.gpt reads tokens; use model.vit",
       data("cifar10 { path: 'x' }")},
      {"data: has tokens, and model.vit reads images; use cifar10",
       [](v1::JobSpec* s) { *s->mutable_model() = Vit().model(); }},
      {"model.vit: a sampling job writes text, and this model reads images",
       [](v1::JobSpec* s) {
         *s->mutable_model() = Vit().model();
         s->clear_data();
         s->clear_train();
         s->clear_ranks();
         s->mutable_sample()->set_checkpoint("x");
       }},
      {"model.vit.heads: 3 does not divide dim 8", vit("heads: 3")},
      {"model.vit.patch: 5 does not divide image 32", vit("patch: 5")},
      {"model.vit.class_tokens: is -1, wants at least 1", vit("class_tokens: -1")},
      {"model.vit.init_scale: is -1, wants a number from 0", vit("init_scale: -1")},
      {"model.vit.image: is 64, the data's images have 32 pixels a side", vit("image: 64")},
      {"model.vit.classes: is 5, the data has 10", vit("classes: 5")},
      {"model.vit.norm: there is no choice 9",
       [](v1::JobSpec* s) {
         *s = Vit();
         s->mutable_model()->mutable_vit()->set_norm(static_cast<v1::Norm>(9));
       }},
  };
  for (const auto& row : rows) {
    v1::JobSpec spec = Small();
    row.spoil(&spec);
    EXPECT_EQ(Admit(BuiltinOpSet(), spec).status().message(), row.says);
  }
}

TEST(Admit, SeveralProblems_AreAllListed) {
  v1::JobSpec spec = Small();
  spec.clear_name();
  spec.mutable_train()->clear_steps();
  GptOf(&spec)->set_heads(3);
  const std::string message(Admit(BuiltinOpSet(), spec).status().message());
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

TEST(Admit, SamplingJob_NeedsNoDataAndNoTrain) {
  const StatusOr<v1::JobSpec> spec = Admit(BuiltinOpSet(), Parse(R"(
      name: "s" model { gpt { layers: 1 heads: 2 dim: 8 context: 64 vocab: 65 } } sample { checkpoint: "c" })"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->sample().tokens(), 200);
  EXPECT_EQ(spec->sample().prompt(), "\n");
  EXPECT_EQ(spec->sample().temperature(), 0.8);
  EXPECT_FALSE(spec->has_train());
  EXPECT_FALSE(spec->has_data());
}

TEST(Admit, ClientGraph_IsTakenAtAnotherNumberOfSamples) {
  const StatusOr<v1::JobSpec> spec = Admit(BuiltinOpSet(), OfGraph(ClientGraph(3)));
  EXPECT_TRUE(spec.ok()) << spec.status();
}

TEST(Admit, WrongClientGraphs_AreNamed) {
  const struct {
    const char* says;
    std::function<void(v1::Graph*)> spoil;
  } rows[] = {
      {"model.graph: node 'embedding': no op 'embeding'; did you mean 'embedding'?",
       [](v1::Graph* g) { g->mutable_nodes(0)->set_op("embeding"); }},
      {"needs an output 'count'", [](v1::Graph* g) { g->mutable_outputs()->RemoveLast(); }},
      {"input value 99 does not exist",
       [](v1::Graph* g) { g->mutable_nodes(0)->set_inputs(0, 99); }},
      {"is used before it is made",
       [](v1::Graph* g) { g->mutable_nodes(0)->set_inputs(0, g->nodes(1).outputs(0)); }},
      {"is made twice",
       [](v1::Graph* g) { g->mutable_nodes(1)->set_outputs(0, g->nodes(0).outputs(0)); }},
      {"another node has the same name",
       [](v1::Graph* g) { g->mutable_nodes(1)->set_name(g->nodes(0).name()); }},
      {"the name has 300 bytes, the limit is 253",
       [](v1::Graph* g) { g->mutable_nodes(1)->set_name(std::string(300, 'n')); }},
      {"result 0 of embedding is f32[3, 4, 5], the graph says f32[3, 4, 6]",
       [](v1::Graph* g) { g->mutable_values(g->nodes(0).outputs(0))->set_dims(2, 6); }},
      {"input 'words' is not fed", [](v1::Graph* g) { g->mutable_inputs(0)->set_name("words"); }},
      {"writes its inputs, which a graph may not",
       [](v1::Graph* g) { g->mutable_nodes(0)->set_op("sgd"); }},
      {"unknown attribute 'shap'",
       [](v1::Graph* g) { (*g->mutable_nodes(1)->mutable_attributes())["shap"].set_i(1); }},
  };
  for (const auto& row : rows) {
    v1::Graph graph = wire::ToProto(ClientGraph(3));
    row.spoil(&graph);
    v1::JobSpec spec = OfGraph(ClientGraph(3));
    *spec.mutable_model()->mutable_graph() = graph;
    const Status status = Admit(BuiltinOpSet(), spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.says;
    EXPECT_NE(std::string(status.message()).find(row.says), std::string::npos) << row.says << "\n"
                                                                               << status;
  }
  const Status fixed = Admit(BuiltinOpSet(), OfGraph(ClientGraph(3, "fixed"))).status();
  EXPECT_NE(std::string(fixed.message()).find("at 4 samples: node 'reshape'"), std::string::npos)
      << fixed;
}

TEST(Admit, Limits_AreInTheMessage) {
  AdmitLimits limits;
  limits.graph.nodes = 2;
  const v1::JobSpec spec = OfGraph(ClientGraph(3));
  EXPECT_NE(std::string(Admit(BuiltinOpSet(), spec, limits).status().message())
                .find("the graph has 3 nodes, the limit is 2"),
            std::string::npos);
  limits = {};
  limits.spec_bytes = 10;
  EXPECT_NE(
      std::string(Admit(BuiltinOpSet(), spec, limits).status().message()).find("the limit is 10"),
      std::string::npos);
}

}  // namespace
}  // namespace weft::admit
