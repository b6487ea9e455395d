// The first losses of training runs against PyTorch's from the same weights and batches. Weights
// and batches come from integer formulas that make_golden.py states, so that only the losses are
// stored.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "fabric/models/vit.h"
#include "tests/golden/formula.h"
#include "tests/support/gpt_plan.h"
#include "worker/data/dataset.h"

namespace weft {
namespace {

constexpr double kTolerance = 2e-5;  // relative, FP32

using testing::FormulaHash;
using testing::FormulaValue;

bool EndsIn(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

float Weight(const ParameterSlot& p, uint32_t number, uint32_t element) {
  const float r = FormulaValue(number, element);
  if (EndsIn(p.name, ".bias")) return 0.02f * r;
  if (p.shape.rank() == 1) return 1.0f + 0.1f * r;
  const bool into_residual = EndsIn(p.name, "attn.proj") || EndsIn(p.name, "mlp.down");
  return (into_residual ? 0.02f : 0.05f) * r;
}

class FormulaData final : public data::Dataset {
 public:
  enum class Kind { kReverse, kPairs };
  FormulaData(Kind kind, int64_t batch, int64_t context, int64_t vocab)
      : kind_(kind), batch_(batch), context_(context), vocab_(static_cast<uint32_t>(vocab)) {
    const TensorMeta row{DType::kI32, {context}};
    slots_ = {{"tokens", row}, {"targets", row}};
  }
  const std::vector<data::Slot>& slots() const override { return slots_; }
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    const uint32_t step = static_cast<uint32_t>(number / batch_),
                   row = static_cast<uint32_t>(number % batch_);
    int32_t* tokens = static_cast<int32_t*>(into[0]);
    int32_t* targets = static_cast<int32_t*>(into[1]);
    kind_ == Kind::kReverse ? Reverse(step, row, tokens, targets)
                            : Pairs(step, row, tokens, targets);
  }
  int64_t eval_samples() const override { return 0; }
  void EvalSample(int64_t, absl::Span<void* const>) const override {}
  std::string digest() const override { return "0:formula"; }

 private:
  void Reverse(uint32_t step, uint32_t row, int32_t* tokens, int32_t* targets) const {
    const int64_t n = 1 + FormulaHash(step * 65537u + row * 131u + 7u) % 16;
    for (int64_t p = 0; p < context_; ++p) tokens[p] = 3;
    tokens[0] = 0;
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t symbol =
          FormulaHash(step * 1000003u + row * 1009u + static_cast<uint32_t>(j) + 77u) % 32;
      tokens[1 + j] = tokens[2 * n + 1 - j] = static_cast<int32_t>(4 + symbol);
    }
    tokens[n + 1] = 1;
    tokens[2 * n + 2] = 2;
    for (int64_t p = 0; p < context_; ++p) {
      targets[p] = p >= n + 1 && p <= 2 * n + 1 ? tokens[p + 1] : data::kIgnored;
    }
  }
  void Pairs(uint32_t step, uint32_t row, int32_t* tokens, int32_t* targets) const {
    const auto token = [&](int64_t j) {
      const uint32_t pair = static_cast<uint32_t>(j / 2);
      return static_cast<int32_t>(FormulaHash(step * 7919u + row * 104729u + pair * 31u + 5u) %
                                  vocab_);
    };
    for (int64_t p = 0; p < context_; ++p) {
      tokens[p] = token(p);
      targets[p] = token(p + 1);
    }
  }

  Kind kind_;
  int64_t batch_, context_;
  uint32_t vocab_;
  std::vector<data::Slot> slots_;
};

class FormulaImages final : public data::Dataset {
 public:
  FormulaImages(int64_t batch, int64_t classes) : batch_(batch), classes_(classes) {
    slots_ = {{"images", {DType::kU8, {3, 32, 32}}}, {"targets", {DType::kI32, {}}}};
  }
  const std::vector<data::Slot>& slots() const override { return slots_; }
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    const auto step = static_cast<uint32_t>(number / batch_),
               row = static_cast<uint32_t>(number % batch_);
    uint8_t* const image = static_cast<uint8_t*>(into[0]);
    for (uint32_t i = 0; i < 3072; ++i) {
      image[i] = static_cast<uint8_t>(FormulaHash(static_cast<uint32_t>(number) * 3072u + i + 11u));
    }
    *static_cast<int32_t*>(into[1]) = static_cast<int32_t>(
        FormulaHash(step * 7919u + row * 104729u + 5u) % static_cast<uint32_t>(classes_));
  }
  int64_t eval_samples() const override { return 0; }
  void EvalSample(int64_t, absl::Span<void* const>) const override {}
  std::string digest() const override { return "0:formula"; }

 private:
  int64_t batch_, classes_;
  std::vector<data::Slot> slots_;
};

struct GoldenRun {
  const char* file;
  testing::GptPlanSpec spec;
  FormulaData::Kind data;
};

struct GoldenVit {
  const char* file;
  VitSpec model;
  testing::GptPlanSpec spec;
};

GoldenVit VitWithClassTokens() {
  GoldenVit run{"vit_rms_losses.json", {}, {}};
  run.model = {.layers = 2, .heads = 4, .dim = 64, .image = 32, .patch = 4, .classes = 10};
  run.model.class_tokens = 16;
  run.model.norm = VitSpec::Norm::kRms;
  run.model.qkv_bias = false;
  run.spec.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  run.spec.optimizer.lr = 3e-4;
  run.spec.optimizer.weight_decay = 0;
  run.spec.batch = 8;
  return run;
}

GoldenVit VitWithLayerNorms() {
  GoldenVit run{"vit_layer_losses.json", {}, {}};
  run.model = {.layers = 2, .heads = 2, .dim = 48, .image = 32, .patch = 8, .classes = 10};
  run.spec.optimizer.lr = 0.05;
  run.spec.batch = 4;
  return run;
}

GoldenRun SequenceReversal() {
  GoldenRun run{"seqrev_losses.json", {}, FormulaData::Kind::kReverse};
  run.spec.model = {.layers = 2, .heads = 4, .dim = 128, .context = 64, .vocab = 36};
  run.spec.model.position = GptSpec::Position::kRotary;
  run.spec.model.norm = GptSpec::Norm::kRms;
  run.spec.model.tied = false;
  run.spec.optimizer.lr = 0.1;
  run.spec.optimizer.clamp = 1;
  run.spec.batch = 60;
  return run;
}

GoldenRun Characters() {
  GoldenRun run{"char_losses.json", {}, FormulaData::Kind::kPairs};
  run.spec.model = {.layers = 4, .heads = 4, .dim = 128, .context = 64, .vocab = 65};
  run.spec.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  run.spec.optimizer.lr = 1e-3;
  run.spec.optimizer.beta2 = 0.99;
  run.spec.optimizer.weight_decay = 0.1;
  run.spec.optimizer.clip_norm = 1;
  run.spec.batch = 12;
  return run;
}

GoldenRun Biases() {
  GoldenRun run{"bias_losses.json", {}, FormulaData::Kind::kPairs};
  run.spec.model = {.layers = 2, .heads = 2, .dim = 64, .context = 32, .vocab = 50};
  run.spec.model.tied = false;
  run.spec.model.bias = true;
  run.spec.optimizer.lr = 0.05;
  run.spec.batch = 4;
  return run;
}

std::vector<double> GoldenLosses(const std::string& file) {
  std::ifstream in("tests/golden/" + file);
  EXPECT_TRUE(in.good()) << file;
  std::stringstream text;
  text << in.rdbuf();
  const auto json = nlohmann::json::parse(text.str());
  return json.at("losses_fp32").get<std::vector<double>>();
}

void ExpectLosses(const Plan& plan, const data::Dataset& data, const char* file) {
  const std::vector<double> golden = GoldenLosses(file);
  ASSERT_GE(golden.size(), 10u);
  const Status status =
      testing::RunRanks(plan, data, 1, 1, [&](int32_t rank, StepRunner& runner) -> Status {
        uint32_t number = 0;
        for (const ParameterSlot& p : plan.program.parameters) {
          for (int64_t i = 0; i < p.shape.elements(); ++i) {
            runner.state().param()[p.offset + i] = Weight(p, number, static_cast<uint32_t>(i));
          }
          ++number;
        }
        for (size_t step = 0; step < golden.size(); ++step) {
          ASSIGN_OR_RETURN(const StepResult result,
                           testing::OneStep(runner, static_cast<int64_t>(step), 0));
          if (rank == 0) {
            EXPECT_NEAR(result.loss / golden[step], 1, kTolerance) << file << " step " << step;
          }
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

void Check(GoldenRun run, int32_t lanes, int32_t ranks) {
  run.spec.lanes = lanes;
  run.spec.ranks = ranks;
  auto plan = testing::MakeGptPlan(run.spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const FormulaData data(run.data, run.spec.batch, run.spec.model.context, run.spec.model.vocab);
  ExpectLosses(*plan, data, run.file);
}

void Check(GoldenVit run, int32_t lanes, int32_t ranks) {
  run.spec.lanes = lanes;
  run.spec.ranks = ranks;
  run.model.feed.mean = {4914, 4822, 4465};
  run.model.feed.deviation = {2470, 2435, 2616};
  auto plan = testing::MakeModelPlan(
      run.spec, [&run](int64_t rows) { return BuildVit(run.model, rows, GraphMode::kTrain); });
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectLosses(*plan, FormulaImages(run.spec.batch, run.model.classes), run.file);
}

TEST(TrainingGolden, SequenceReversal_OneLane_EqualsPyTorch) { Check(SequenceReversal(), 1, 1); }
TEST(TrainingGolden, SequenceReversal_LanesOnRanks_EqualsPyTorch) {
  Check(SequenceReversal(), 12, 2);
}
TEST(TrainingGolden, Characters_OneLane_EqualsPyTorch) { Check(Characters(), 1, 1); }
TEST(TrainingGolden, Characters_LanesOnRanks_EqualsPyTorch) { Check(Characters(), 12, 3); }
TEST(TrainingGolden, Biases_OneLane_EqualsPyTorch) { Check(Biases(), 1, 1); }
TEST(TrainingGolden, VitWithClassTokens_OneLane_EqualsPyTorch) {
  Check(VitWithClassTokens(), 1, 1);
}
TEST(TrainingGolden, VitWithClassTokens_LanesOnRanks_EqualsPyTorch) {
  Check(VitWithClassTokens(), 4, 3);
}
TEST(TrainingGolden, VitWithLayerNorms_OneLane_EqualsPyTorch) { Check(VitWithLayerNorms(), 1, 1); }

}  // namespace
}  // namespace weft
