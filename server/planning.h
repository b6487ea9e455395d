// What the coordinator asks of admission and planning, which are pure and know nothing of it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"
#include "proto/member_api.pb.h"
#include "proto/plan.pb.h"

namespace weft {

struct PlanQuestion {
  const v1::JobSpec& spec;                       // admitted
  int32_t ranks = 0;                             // 0: as many as are free, within the job's bounds
  const std::vector<v1::Registration>& workers;  // all slots free; empty: none is in view
  const v1::Numerics* numerics = nullptr;        // decided before, to be kept; nullptr: decide
};

struct Planning {
  // The spec with defaults filled in. InvalidArgument names the field and what would do.
  std::function<StatusOr<v1::JobSpec>(const v1::JobSpec&)> admit;
  // InvalidArgument: the job is wrong; FailedPrecondition: these workers cannot run it.
  std::function<StatusOr<v1::Plan>(const PlanQuestion&)> plan;
};

// The real ones; `ops` must outlive what it returns.
Planning MakePlanning(const OpSet& ops);

}  // namespace weft
