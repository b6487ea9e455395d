// Whole training steps on the GPU against the CPU's, which tests/golden holds to PyTorch's.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include <gtest/gtest.h>

#include "fabric/base/clock.h"
#include "fabric/comm/communicator.h"
#include "tests/support/gpt_plan.h"
#include "worker/core/device/cpu_device.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/exec/step_runner.h"
#include "worker/exec/step_trace.h"
#include "worker/exec/train_state.h"

namespace weft {
namespace {

using testing::GptPlanSpec;

constexpr uint64_t kSeed = 5;

GptPlanSpec SmallSpec() {
  GptPlanSpec spec;
  spec.model = {.layers = 2, .heads = 2, .dim = 64, .context = 64, .vocab = 36};
  spec.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  spec.optimizer.lr = 1e-3;
  spec.optimizer.clip_norm = 1;
  spec.optimizer.total = 100;
  spec.batch = 16;
  spec.lanes = 1;
  return spec;
}

std::unique_ptr<data::Dataset> SmallData() {
  data::ReverseOptions options;
  options.symbols = 32;
  options.max_length = 16;
  options.eval_samples = 37;
  options.context = 64;
  return *data::OpenReverse(options);
}

struct Outcome {
  std::string digest;
  std::vector<float> losses;
  EvalSums eval;
};

// With a trace, which records steps [2, steps) of it.
StatusOr<Outcome> Train(const GptPlanSpec& spec, Device* device, int64_t steps,
                        StepTrace* trace = nullptr) {
  constexpr int64_t kFirstTraced = 2;
  ASSIGN_OR_RETURN(const Plan plan, testing::MakeGptPlan(spec));
  const std::unique_ptr<data::Dataset> dataset = SmallData();
  const std::unique_ptr<TileRunner> tiles = MakeThreadPool(2);
  const std::unique_ptr<comm::Communicator> comm = comm::MakeLoopback();
  StepParts parts;
  parts.plan = &plan;
  parts.seed = kSeed;
  parts.device = device;
  parts.kernels = &BuiltinKernels();
  parts.tiles = tiles.get();
  parts.comm = comm.get();
  parts.dataset = dataset.get();
  parts.trace = trace;
  ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner, StepRunner::Create(parts));
  RETURN_IF_ERROR(InitializeParameters(plan.program, kSeed, BuiltinKernels(), tiles.get(),
                                       runner->state().param()));
  RETURN_IF_ERROR(runner->StoreState(0));
  Outcome outcome;
  int64_t submitted = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (trace != nullptr && step == kFirstTraced) trace->Start(step);
    const int64_t pause = trace != nullptr && step < kFirstTraced ? kFirstTraced : steps;
    while (submitted < std::min(pause, step + runner->depth())) {
      RETURN_IF_ERROR(runner->Submit(submitted++, 0));
    }
    ASSIGN_OR_RETURN(const StepResult result, runner->Confirm());
    outcome.losses.push_back(result.loss);
  }
  if (trace != nullptr) trace->Stop(steps);
  ASSIGN_OR_RETURN(outcome.eval, runner->Evaluate());
  RETURN_IF_ERROR(runner->FetchState());
  outcome.digest = StateDigest(plan.program, runner->state(), outcome.losses);
  return outcome;
}

struct Variant {
  const char* name;
  GptSpec::Position position;
  GptSpec::Norm norm;
  bool tied, bias;
  int32_t lanes;
  OptimizerSpec::Kind optimizer;
};

class GpuTraining : public ::testing::TestWithParam<Variant> {};

TEST_P(GpuTraining, ThirtySteps_LossesAsOnTheCpuAndTheSameBitsTwice) {
  const Variant& v = GetParam();
  GptPlanSpec spec = SmallSpec();
  spec.model.position = v.position;
  spec.model.norm = v.norm;
  spec.model.tied = v.tied;
  spec.model.bias = v.bias;
  spec.lanes = v.lanes;
  spec.optimizer.kind = v.optimizer;
  if (v.optimizer == OptimizerSpec::Kind::kSgd) spec.optimizer.clamp = 1;
  const StatusOr<std::unique_ptr<Device>> gpu = MakeCudaDevice(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const std::unique_ptr<Device> cpu = MakeCpuDevice();
  constexpr int64_t kSteps = 30;
  const StatusOr<Outcome> want = Train(spec, cpu.get(), kSteps);
  ASSERT_TRUE(want.ok()) << want.status();
  const StatusOr<Outcome> got = Train(spec, gpu->get(), kSteps);
  ASSERT_TRUE(got.ok()) << got.status();
  for (size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got->losses[i] / want->losses[i], 1, 2e-5) << "step " << i;
  }
  EXPECT_EQ(got->eval.count, want->eval.count);
  EXPECT_NEAR(got->eval.loss / want->eval.loss, 1, 5e-5);
  const StatusOr<Outcome> again = Train(spec, gpu->get(), kSteps);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(got->digest, again->digest);
}

TEST(GpuProfile, ReplayedGraph_EveryKernelIsNamedByItsCallAndNoBitChanges) {
  GptPlanSpec spec = SmallSpec();
  spec.lanes = 2;
  const StatusOr<std::unique_ptr<Device>> gpu = MakeCudaDevice(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  constexpr int64_t kSteps = 6, kTraced = 4;
  const StatusOr<Outcome> plain = Train(spec, gpu->get(), kSteps);
  ASSERT_TRUE(plain.ok()) << plain.status();
  TracedRank rank;
  rank.device = (*gpu)->info().model;
  rank.on_cpu = false;
  rank.ceilings = CudaCeilings(0);
  EXPECT_GT(rank.ceilings.memory_bytes, 0);
  StepTrace trace(rank, {}, &BuiltinOpSet(), &RealClock());
  const StatusOr<Outcome> traced = Train(spec, gpu->get(), kSteps, &trace);
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_EQ(traced->digest, plain->digest);
  EXPECT_EQ(trace.note(), "");

  const nlohmann::json report = nlohmann::json::parse(trace.KernelsJson());
  ASSERT_FALSE(report["kernels"].empty()) << report;
  double share = 0;
  int64_t finished = 0;
  for (const nlohmann::json& row : report["kernels"]) {
    share += row["share"].get<double>();
    if (row.value("op", "") == "finish step") {
      finished += std::lround(row["launches_per_step"].get<double>() * kTraced);
    }
    const std::string kernel = row["kernel"];
    // Inputs are copied beside the graph; all else is a call of it.
    if (kernel.rfind("copy to device", 0) != 0) {
      EXPECT_TRUE(row.contains("op")) << row;
    }
  }
  EXPECT_NEAR(share, 1, 1e-6);
  EXPECT_EQ(finished, kTraced);
}

constexpr auto kRotary = GptSpec::Position::kRotary;
constexpr auto kLearned = GptSpec::Position::kLearned;
constexpr auto kRms = GptSpec::Norm::kRms;
constexpr auto kLayer = GptSpec::Norm::kLayer;
constexpr auto kSgd = OptimizerSpec::Kind::kSgd;
constexpr auto kAdamW = OptimizerSpec::Kind::kAdamW;

INSTANTIATE_TEST_SUITE_P(
    Models, GpuTraining,
    ::testing::Values(Variant{"reversal", kRotary, kRms, false, false, 1, kSgd},
                      Variant{"reversal_lanes", kRotary, kRms, false, false, 4, kSgd},
                      Variant{"gpt", kLearned, kLayer, true, false, 1, kAdamW},
                      Variant{"gpt_bias_lanes", kLearned, kLayer, true, true, 4, kAdamW}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft
