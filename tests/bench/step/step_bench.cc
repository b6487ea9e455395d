// Times training steps of the two first-light models on in-process ranks, without daemons: where a
// change to a kernel shows first. Prints one line a configuration.
//   step_bench [ranks] [steps]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "fabric/base/clock.h"
#include "tests/support/gpt_plan.h"
#include "worker/data/dataset.h"

namespace weft {
namespace {

struct Workload {
  const char* name;
  testing::GptPlanSpec spec;
};

testing::GptPlanSpec SequenceReversal() {
  testing::GptPlanSpec s;
  s.model = {.layers = 2, .heads = 4, .dim = 128, .context = 64, .vocab = 36};
  s.model.position = GptSpec::Position::kRotary;
  s.model.norm = GptSpec::Norm::kRms;
  s.model.tied = false;
  s.optimizer.lr = 0.1;
  s.optimizer.clamp = 1;
  s.batch = 60;
  return s;
}

testing::GptPlanSpec Characters() {
  testing::GptPlanSpec s;
  s.model = {.layers = 4, .heads = 4, .dim = 128, .context = 64, .vocab = 65};
  s.optimizer.kind = OptimizerSpec::Kind::kAdamW;
  s.optimizer.lr = 1e-3;
  s.optimizer.clip_norm = 1;
  s.batch = 12;
  return s;
}

Status Run(const Workload& workload, int32_t ranks, int64_t steps) {
  testing::GptPlanSpec spec = workload.spec;
  spec.ranks = ranks;
  spec.lanes = ranks;
  ASSIGN_OR_RETURN(const Plan plan, testing::MakeGptPlan(spec));
  data::ReverseOptions options;
  options.context = spec.model.context;
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Dataset> dataset, data::OpenReverse(options));
  std::vector<double> ms;
  RETURN_IF_ERROR(
      testing::RunRanks(plan, *dataset, 1, 1, [&](int32_t rank, StepRunner& runner) -> Status {
        for (int64_t step = 0; step < steps; ++step) {
          const absl::Duration begin = RealClock().Monotonic();
          RETURN_IF_ERROR(testing::OneStep(runner, step, 0).status());
          if (rank == 0 && step >= steps / 5) {
            ms.push_back(absl::ToDoubleMilliseconds(RealClock().Monotonic() - begin));
          }
        }
        return absl::OkStatus();
      }));
  std::sort(ms.begin(), ms.end());
  std::printf("%-20s ranks %d  median %.2f ms  p10 %.2f  p90 %.2f  (%zu steps)\n", workload.name,
              ranks, ms[ms.size() / 2], ms[ms.size() / 10], ms[ms.size() * 9 / 10], ms.size());
  return absl::OkStatus();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 50;
  for (const weft::Workload& workload :
       {weft::Workload{"sequence reversal", weft::SequenceReversal()},
        weft::Workload{"characters", weft::Characters()}}) {
    if (const weft::Status status = weft::Run(workload, ranks, steps); !status.ok()) {
      std::fprintf(stderr, "%s: %s\n", workload.name, status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
