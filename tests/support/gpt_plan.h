// A plan for the decoder family without a coordinator, and its ranks as threads of this process:
// what tests of the executor's parts run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/mesh/partition.h"
#include "fabric/mesh/plan.h"
#include "fabric/models/gpt.h"
#include "worker/data/dataset.h"
#include "worker/exec/step_runner.h"

namespace weft::testing {

struct GptPlanSpec {
  GptSpec model;
  OptimizerSpec optimizer;
  int64_t batch = 0;
  int32_t lanes = 1;
  int32_t ranks = 1;
  ReduceMode reduce = ReduceMode::kOrdered;
  ComputePrecision precision = ComputePrecision::kFp32;
  bool stochastic_rounding = false;
};

StatusOr<Plan> MakeGptPlan(const GptPlanSpec& spec);

// The same for another model: its training graph at that many samples. `spec.model` is not read.
using GraphAtRows = std::function<StatusOr<Graph>(int64_t rows)>;
StatusOr<Plan> MakeModelPlan(const GptPlanSpec& spec, const GraphAtRows& model);

// Runs `body(rank, runner)` for every rank of `plan` on a thread of its own, joined in one
// in-process group, with `threads` compute threads each. Returns the first error in rank order.
Status RunRanks(const Plan& plan, const data::Dataset& dataset, uint64_t seed, int threads,
                const std::function<Status(int32_t rank, StepRunner& runner)>& body);

// Submits step `step` and waits for it.
StatusOr<StepResult> OneStep(StepRunner& runner, int64_t step, float request);

}  // namespace weft::testing
