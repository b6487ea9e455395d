// The planner: job, cluster view, options -> plan or the reason why there is none. Pure: the same
// question gives the same answer, and nothing is touched.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"
#include "server/plan/estimate.h"
#include "server/plan/offer.h"

namespace weft::plan {

struct PlanOptions {
  int32_t ranks = 0;                   // 0: as many as are free, within the job's bounds
  const Numerics* numerics = nullptr;  // decided before, to be kept; nullptr: decide
  Ceilings ceilings = {};              // `cores` is taken from workers where they are known
  Ceilings gpu_ceilings = GpuCeilings();
};

// `spec` is admitted (defaults filled in). Without workers the plan is what the job would get where
// everything is free: ranks.max unless the options say otherwise. InvalidArgument: the job itself
// is wrong. FailedPrecondition: these workers cannot run it, or not now; the message says which and
// why.
StatusOr<Plan> MakePlan(const OpSet& ops, const v1::JobSpec& spec,
                        const std::vector<WorkerOffer>& workers, const PlanOptions& options);

}  // namespace weft::plan
