#include "server/plan/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/mesh/lanes.h"
#include "fabric/mesh/partition.h"
#include "fabric/wire/convert_plan.h"
#include "server/plan/model.h"
#include "server/plan/numerics.h"

namespace weft::plan {
namespace {

// Evaluation samples a lane at least: a lane of one or two rows wastes the products' tiles.
constexpr int64_t kEvalRows = 16;

struct Ranks {
  int32_t count = 0;
  std::string why;
};

StatusOr<Ranks> ChooseRanks(const v1::JobSpec& spec, const std::vector<WorkerOffer>& workers,
                            int32_t asked) {
  const int32_t least = spec.has_sample() ? 1 : std::max(1, spec.ranks().min());
  const int32_t most = spec.has_sample() ? 1 : std::max(least, spec.ranks().max());
  int64_t free = 0;
  for (const WorkerOffer& worker : workers) free += worker.free_slots;
  const std::string bounds =
      least == most ? absl::StrCat("takes ", most) : absl::StrCat("takes ", least, " to ", most);
  if (asked > 0) {
    if (asked < least || asked > most) {
      return InvalidArgument("ranks: ", asked, " asked for, the job ", bounds);
    }
    if (!workers.empty() && free < asked) {
      return FailedPrecondition(asked, " ranks asked for, ", free, " slots are free");
    }
    return Ranks{asked, absl::StrCat(asked, " asked for, the job ", bounds)};
  }
  if (workers.empty())
    return Ranks{most, absl::StrCat("no workers are known yet, the job ", bounds)};
  if (free < least)
    return FailedPrecondition("the job ", bounds, " ranks, ", free, " slots are free");
  const int32_t count = static_cast<int32_t>(std::min<int64_t>(free, most));
  return Ranks{
      count, absl::StrCat(free, free == 1 ? " slot is" : " slots are", " free, the job ", bounds)};
}

StatusOr<Program> ProgramFor(const OpSet& ops, const v1::JobSpec& spec, int64_t rows,
                             int64_t eval_rows) {
  PartitionRequest request;
  ASSIGN_OR_RETURN(request.predict, PredictionGraph(spec.model()));
  if (spec.has_sample()) {
    if (!request.predict.has_value()) {
      return InvalidArgument("sampling needs an output 'logits' that depends on 'tokens' alone");
    }
    return MakeProgram(ops, request);
  }
  ASSIGN_OR_RETURN(request.train, ForwardGraph(spec, rows, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.evaluate, ForwardGraph(spec, eval_rows, GraphMode::kEvaluate));
  request.optimizer = OptimizerFromProto(spec.train());
  ASSIGN_OR_RETURN(request.precision, wire::FromProto(spec.train().precision()));
  request.stochastic_rounding = spec.train().stochastic_rounding();
  return MakeProgram(ops, request);
}

// Threads of the worker with the fewest cores a slot.
int32_t CoresPerRank(const v1::JobSpec& spec, const std::vector<WorkerOffer>& workers,
                     int32_t fallback) {
  if (spec.threads() > 0) return spec.threads();
  int32_t cores = 0;
  for (const WorkerOffer& worker : workers) {
    const int32_t here = std::max(1, worker.cores / std::max(1, worker.slots));
    cores = cores == 0 ? here : std::min(cores, here);
  }
  return cores > 0 ? cores : fallback;
}

Status CheckMemory(const Plan& plan, const std::vector<WorkerOffer>& workers) {
  const bool on_gpu = OnGpu(plan.numerics);
  const int64_t each = plan.estimate.total_bytes;
  for (const WorkerOffer& worker : workers) {
    const int64_t has = on_gpu ? worker.gpu.memory_bytes : worker.memory_bytes;
    // As many of the job's ranks as could come here; ranks beyond the GPUs share them.
    int64_t sharing = std::clamp(worker.slots, 1, std::max(1, plan.ranks));
    if (on_gpu) sharing = (sharing + worker.gpu.count - 1) / std::max(1, worker.gpu.count);
    if (has > 0 && each * sharing > has) {
      return CannotRun(
          worker, absl::StrCat("has ", has >> 20, " MiB of memory", on_gpu ? " on a GPU" : "", ", ",
                               sharing == 1 ? std::string("a rank needs ")
                                            : absl::StrCat(sharing, " ranks need "),
                               (each * sharing) >> 20,
                               " MiB; use more lanes (smaller ones), fewer ranks or "
                               "a smaller model"));
    }
  }
  return absl::OkStatus();
}

std::string Plural(int64_t count, const char* word) {
  return absl::StrCat(count, " ", word, count == 1 ? "" : "s");
}

}  // namespace

WorkerOffer OfferOf(const v1::Registration& r) {
  WorkerOffer offer;
  offer.worker = r.worker();
  offer.free_slots = offer.slots = r.slots();
  offer.cores = r.cores();
  offer.instruction_sets.assign(r.instruction_sets().begin(), r.instruction_sets().end());
  offer.libraries = {r.libraries().begin(), r.libraries().end()};
  offer.opset_digest = r.opset_digest();
  offer.memory_bytes = r.memory_bytes();
  const v1::GpuFacts& gpu = r.gpu();
  if (gpu.count() > 0) {
    offer.gpu = {gpu.count(),
                 gpu.model(),
                 gpu.processors(),
                 gpu.memory_bytes(),
                 {gpu.libraries().begin(), gpu.libraries().end()}};
  }
  return offer;
}

StatusOr<Plan> MakePlan(const OpSet& ops, const v1::JobSpec& spec,
                        const std::vector<WorkerOffer>& workers, const PlanOptions& options) {
  Plan plan;
  ASSIGN_OR_RETURN(const Ranks ranks, ChooseRanks(spec, workers, options.ranks));
  ASSIGN_OR_RETURN(plan.numerics, ChooseNumerics(ops, spec, workers, options.numerics));
  plan.ranks = ranks.count;
  const bool trains = !spec.has_sample();
  plan.lanes = trains ? (spec.lanes() > 0 ? spec.lanes() : std::max(1, spec.ranks().max())) : 1;
  plan.batch = trains ? spec.train().batch() : 1;
  RETURN_IF_ERROR(Annotate(CheckBatch(plan.batch, plan.lanes), "train.batch"));
  StatusOr<std::vector<LaneRange>> shares = ShareLanes(plan.lanes, plan.ranks);
  if (!shares.ok()) return Annotate(shares.status(), "ranks");
  plan.shares = *std::move(shares);
  if (spec.reduce() == v1::REDUCE_MODE_RING) plan.reduce = ReduceMode::kRing;
  const int64_t rows = plan.batch / plan.lanes;
  plan.eval_batch = trains ? std::max(rows, kEvalRows) : 0;
  StatusOr<Program> program = ProgramFor(ops, spec, rows, plan.eval_batch);
  if (!program.ok()) return Annotate(program.status(), "model");
  plan.program = *std::move(program);
  if (trains) {
    ASSIGN_OR_RETURN(plan.precision, wire::FromProto(spec.train().precision()));
  }
  Ceilings ceilings = OnGpu(plan.numerics) ? options.gpu_ceilings : options.ceilings;
  if (!OnGpu(plan.numerics)) ceilings.cores = CoresPerRank(spec, workers, ceilings.cores);
  ASSIGN_OR_RETURN(plan.estimate, EstimatePlan(ops, plan, ceilings));
  RETURN_IF_ERROR(CheckMemory(plan, workers));
  plan.reason = absl::StrCat(Plural(plan.ranks, "rank"), ": ", ranks.why, "; ",
                             Plural(plan.lanes, "lane"), " of ", Plural(rows, "sample"),
                             ", at most ", Plural(plan.shares[0].size(), "lane"), " a rank");
  return plan;
}

}  // namespace weft::plan
