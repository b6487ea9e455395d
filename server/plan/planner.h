// The planner: job, cluster view, options -> plan or the reason why there is none. Pure: the same
// question gives the same answer, and nothing is touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"
#include "proto/member_api.pb.h"
#include "server/plan/estimate.h"

namespace weft::plan {

struct WorkerOffer {
  std::string worker;
  int32_t free_slots = 0;
  int32_t slots = 1;
  int32_t cores = 1;
  std::vector<std::string> instruction_sets;     // best first
  std::map<std::string, std::string> libraries;  // name -> version
  std::string opset_digest;
  std::string device = "cpu";
  int64_t memory_bytes = 0;  // 0: unknown
};

// All slots of `registration` as free.
WorkerOffer OfferOf(const v1::Registration& registration);

struct PlanOptions {
  int32_t ranks = 0;                   // 0: as many as are free, within the job's bounds
  const Numerics* numerics = nullptr;  // decided before, to be kept; nullptr: decide
  Ceilings ceilings = {};              // `cores` is taken from workers where they are known
};

// `spec` is admitted (defaults filled in). Without workers the plan is what the job would get where
// everything is free: ranks.max unless the options say otherwise. InvalidArgument: the job itself
// is wrong. FailedPrecondition: these workers cannot run it, or not now; the message says which and
// why.
StatusOr<Plan> MakePlan(const OpSet& ops, const v1::JobSpec& spec,
                        const std::vector<WorkerOffer>& workers, const PlanOptions& options);

}  // namespace weft::plan
