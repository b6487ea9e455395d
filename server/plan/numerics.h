// The numerics section of a plan: the device that a job runs on, and what else its bits depend on.
// Pure.
#pragma once

#include <vector>

#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"
#include "server/plan/offer.h"

namespace weft::plan {

// "cpu" and "cuda" are kinds of devices; a GPU's name in Numerics is its model, or "cuda" where no
// worker says which.
inline bool OnGpu(const Numerics& numerics) { return numerics.device != "cpu"; }

// What `workers` can all compute with. `kept`, if not null, was decided before: it is kept, and
// FailedPrecondition names the worker that cannot honour it and why; with `determinism: fast`
// another one is decided on then. InvalidArgument, FailedPrecondition: the job wants a device or
// precision that is not there, and what to do about it.
StatusOr<Numerics> ChooseNumerics(const OpSet& ops, const v1::JobSpec& spec,
                                  const std::vector<WorkerOffer>& workers, const Numerics* kept);

// FailedPrecondition about one worker.
Status CannotRun(const WorkerOffer& worker, const std::string& why);

}  // namespace weft::plan
