#include "worker/exec/step_runner.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/models/vit.h"
#include "tests/support/gpt_plan.h"
#include "worker/data/dataset.h"
#include "worker/exec/train_state.h"

namespace weft {
namespace {

using testing::GptPlanSpec;

GptPlanSpec SmallSpec() {
  GptPlanSpec spec;
  spec.model = {.layers = 2, .heads = 2, .dim = 16, .context = 12, .vocab = 12};
  spec.model.position = GptSpec::Position::kRotary;
  spec.model.norm = GptSpec::Norm::kRms;
  spec.model.tied = false;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  spec.optimizer.lr = 1e-2;
  spec.optimizer.clip_norm = 1;
  spec.optimizer.total = 100;
  spec.batch = 24;
  spec.lanes = 12;
  return spec;
}

std::unique_ptr<data::Dataset> SmallData() {
  data::ReverseOptions options;
  options.symbols = 8;
  options.max_length = 4;
  options.eval_samples = 17;  // no multiple of anything
  options.context = 12;
  auto dataset = data::OpenReverse(options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

struct Outcome {
  std::string digest;
  std::vector<float> losses;
  EvalSums eval;
};

// Trains a few steps; all ranks must agree.
Outcome Train(const StatusOr<Plan>& plan, const data::Dataset& dataset, int threads,
              int64_t steps) {
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<Outcome> outcomes(static_cast<size_t>(plan->ranks));
  const Status status = testing::RunRanks(
      *plan, dataset, 5, threads, [&](int32_t rank, StepRunner& runner) -> Status {
        Outcome& outcome = outcomes[static_cast<size_t>(rank)];
        for (int64_t step = 0; step < steps; ++step) {
          ASSIGN_OR_RETURN(const StepResult result, testing::OneStep(runner, step, 0));
          outcome.losses.push_back(result.loss);
        }
        ASSIGN_OR_RETURN(outcome.eval, runner.Evaluate());
        outcome.digest = StateDigest(plan->program, runner.state(), outcome.losses);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.digest, outcomes[0].digest);
    EXPECT_EQ(outcome.eval.loss, outcomes[0].eval.loss);
  }
  return outcomes[0];
}

Outcome Train(const GptPlanSpec& spec, int threads, int64_t steps = 4) {
  return Train(testing::MakeGptPlan(spec), *SmallData(), threads, steps);
}

TEST(StepRunner, AnyRanksAndThreads_SameBits) {
  GptPlanSpec spec = SmallSpec();
  const Outcome alone = Train(spec, 1);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (int32_t ranks : {1, 2, 3, 4, 5, 6, 12}) {
    for (int threads : {1, 3}) {
      spec.ranks = ranks;
      const Outcome outcome = Train(spec, threads);
      EXPECT_EQ(outcome.digest, alone.digest) << ranks << " ranks, " << threads << " threads";
      EXPECT_EQ(outcome.eval.loss, alone.eval.loss);
      EXPECT_EQ(outcome.eval.count, alone.eval.count);
      EXPECT_EQ(outcome.eval.correct, alone.eval.correct);
    }
  }
}

// 40 random images, of which 30 are trained on.
std::unique_ptr<data::Dataset> SmallImages() {
  const std::string folder = ::testing::TempDir() + "/images-" + std::to_string(getpid());
  const auto write = [&folder](const std::string& name, uint32_t from, uint32_t to) {
    std::ofstream file(folder + name, std::ios::binary);
    for (uint32_t i = from; i < to; ++i) {
      file.put(static_cast<char>(i % 10));
      for (uint32_t k = 0; k < 3072; ++k) {
        file.put(static_cast<char>(((i * 3072 + k) * 2654435761u) >> 24));
      }
    }
  };
  write("train.bin", 0, 30);
  write("test.bin", 30, 40);
  data::Cifar10Options options;
  options.path = folder + "train.bin";
  options.validation = folder + "test.bin";
  auto dataset = data::OpenCifar10(options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

TEST(StepRunner, AugmentedImages_AnyRanks_SameBits) {
  GptPlanSpec spec = SmallSpec();
  VitSpec vit = {.layers = 1, .heads = 2, .dim = 16, .image = 32, .patch = 8, .classes = 10};
  vit.feed.mean = vit.feed.deviation = {5000, 5000, 5000};
  vit.feed.padding = 4;
  vit.feed.flip = true;
  const auto train = [&] {
    const auto model = [&vit](int64_t rows) { return BuildVit(vit, rows, GraphMode::kTrain); };
    return Train(testing::MakeModelPlan(spec, model), *SmallImages(), 1, 6);
  };
  const Outcome alone = train();
  EXPECT_EQ(alone.eval.count, 10);
  for (int32_t ranks : {2, 3, 5}) {
    spec.ranks = ranks;
    EXPECT_EQ(train().digest, alone.digest) << ranks << " ranks";
  }
  vit.feed.padding = 0;
  EXPECT_NE(train().digest, alone.digest);
}

TEST(StepRunner, Ring_AnyRanks_LossesWithinRounding) {
  GptPlanSpec spec = SmallSpec();
  const Outcome ordered = Train(spec, 1);
  spec.reduce = ReduceMode::kRing;
  for (int32_t ranks : {1, 2, 3, 5}) {
    spec.ranks = ranks;
    const Outcome ring = Train(spec, 1);
    for (size_t i = 0; i < ring.losses.size(); ++i) {
      EXPECT_NEAR(ring.losses[i] / ordered.losses[i], 1, 1e-5) << ranks << " ranks, step " << i;
    }
  }
}

TEST(StepRunner, OtherLanes_LossesWithinRounding) {
  GptPlanSpec spec = SmallSpec();
  const Outcome twelve = Train(spec, 1);
  for (int32_t lanes : {1, 2, 8, 24}) {
    spec.lanes = lanes;
    const Outcome other = Train(spec, 1);
    for (size_t i = 0; i < other.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i] / twelve.losses[i], 1, 1e-4) << lanes << " lanes, step " << i;
    }
    EXPECT_EQ(other.eval.count, twelve.eval.count);
  }
}

TEST(StepRunner, Requests_AreSummedOverRanks) {
  GptPlanSpec spec = SmallSpec();
  spec.ranks = 3;
  auto plan = testing::MakeGptPlan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Status status =
      testing::RunRanks(*plan, *SmallData(), 5, 1, [&](int32_t rank, StepRunner& runner) -> Status {
        ASSIGN_OR_RETURN(const StepResult first, testing::OneStep(runner, 0, rank == 1 ? 4 : 0));
        EXPECT_EQ(first.requests, 4);
        ASSIGN_OR_RETURN(const StepResult second, testing::OneStep(runner, 1, 0));
        EXPECT_EQ(second.requests, 0);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(StepRunner, LossNotFinite_NamesTheStepAndChangesNothing) {
  const GptPlanSpec spec = SmallSpec();
  auto plan = testing::MakeGptPlan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Status status =
      testing::RunRanks(*plan, *SmallData(), 5, 1, [&](int32_t, StepRunner& runner) -> Status {
        const int64_t elements = plan->program.flat_elements;
        runner.state().param()[0] = std::numeric_limits<float>::quiet_NaN();
        for (int64_t i = 0; i < 16 * 12; ++i)
          runner.state().param()[i] = std::numeric_limits<float>::quiet_NaN();
        const std::vector<float> before(runner.state().param(), runner.state().param() + elements);
        const auto result = testing::OneStep(runner, 3, 0);
        EXPECT_FALSE(result.ok());
        EXPECT_NE(result.status().message().find("step 3"), absl::string_view::npos)
            << result.status();
        EXPECT_EQ(std::memcmp(before.data(), runner.state().param(), before.size() * sizeof(float)),
                  0);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(StepRunner, DataOfAnotherContext_IsRefusedByName) {
  const GptPlanSpec spec = SmallSpec();
  auto plan = testing::MakeGptPlan(spec);
  ASSERT_TRUE(plan.ok()) << plan.status();
  data::ReverseOptions options;
  options.context = 40;
  auto dataset = data::OpenReverse(options);
  ASSERT_TRUE(dataset.ok());
  const Status status = testing::RunRanks(*plan, **dataset, 5, 1,
                                          [](int32_t, StepRunner&) { return absl::OkStatus(); });
  EXPECT_NE(status.message().find("'tokens' wants i32[2, 12]"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace weft
