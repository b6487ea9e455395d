#include "tests/support/gpt_plan.h"

#include <thread>
#include <utility>

#include "fabric/comm/communicator.h"
#include "fabric/mesh/lanes.h"
#include "fabric/opset/opset.h"
#include "worker/core/device/cpu_device.h"
#include "worker/core/dispatch/kernel_table.h"

namespace weft::testing {

StatusOr<Plan> MakeGptPlan(const GptPlanSpec& spec) {
  return MakeModelPlan(
      spec, [&spec](int64_t rows) { return BuildGpt(spec.model, rows, GraphMode::kTrain); });
}

StatusOr<Plan> MakeModelPlan(const GptPlanSpec& spec, const GraphAtRows& model) {
  RETURN_IF_ERROR(CheckBatch(spec.batch, spec.lanes));
  Plan plan;
  plan.batch = spec.batch;
  plan.lanes = spec.lanes;
  plan.ranks = spec.ranks;
  plan.reduce = spec.reduce;
  plan.numerics.device = "cpu";
  plan.eval_batch = spec.batch / spec.lanes;
  ASSIGN_OR_RETURN(plan.shares, ShareLanes(spec.lanes, spec.ranks));
  PartitionRequest request;
  ASSIGN_OR_RETURN(request.train, model(plan.eval_batch));
  request.evaluate = request.train;
  request.optimizer = spec.optimizer;
  request.precision = plan.precision = spec.precision;
  request.stochastic_rounding = spec.stochastic_rounding;
  ASSIGN_OR_RETURN(plan.program, MakeProgram(BuiltinOpSet(), request));
  return plan;
}

Status RunRanks(const Plan& plan, const data::Dataset& dataset, uint64_t seed, int threads,
                const std::function<Status(int32_t rank, StepRunner& runner)>& body) {
  std::vector<std::unique_ptr<comm::Communicator>> group;
  if (plan.ranks == 1) {
    group.push_back(comm::MakeLoopback());
  } else {
    group = comm::MakeInProcessGroup(plan.ranks);
  }
  std::vector<Status> results(static_cast<size_t>(plan.ranks));
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < plan.ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      const size_t r = static_cast<size_t>(rank);
      const std::unique_ptr<TileRunner> tiles = MakeThreadPool(threads);
      const std::unique_ptr<Device> device = MakeCpuDevice();
      StepParts parts;
      parts.device = device.get();
      parts.plan = &plan;
      parts.rank = rank;
      parts.seed = seed;
      parts.kernels = &BuiltinKernels();
      parts.tiles = tiles.get();
      parts.comm = group[r].get();
      parts.dataset = &dataset;
      results[r] = [&]() -> Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner, StepRunner::Create(parts));
        RETURN_IF_ERROR(InitializeParameters(plan.program, seed, BuiltinKernels(), tiles.get(),
                                             runner->state().param()));
        return body(rank, *runner);
      }();
      // The others must not wait for a rank that has given up.
      if (!results[r].ok()) group[r]->Abort(results[r]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Status& status : results) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

StatusOr<StepResult> OneStep(StepRunner& runner, int64_t step, float request) {
  RETURN_IF_ERROR(runner.Submit(step, request));
  return runner.Confirm();
}

}  // namespace weft::testing
