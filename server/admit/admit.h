// Admission: everything that is wrong with a job is found here, before it is stored or planned, and
// what it leaves out is filled in. Pure; safe on hostile input.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/graph/validate.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"

namespace weft::admit {

struct AdmitLimits {
  GraphLimits graph;
  int64_t spec_bytes = 64 << 20;
  int64_t steps = 1'000'000'000;
  int64_t batch = int64_t{1} << 24;
  int32_t ranks = 16384;
  int32_t threads = 1024;
  int64_t sample_tokens = 1'000'000;
};

// The job with all defaults filled in, so that later parts read every field as it is; only what
// depends on the cluster stays open (instruction_set, threads, transport auto, checkpoint.path).
// InvalidArgument lists every problem on a line of its own, beginning with the field's path and
// saying what would do.
StatusOr<v1::JobSpec> Admit(const OpSet& ops, const v1::JobSpec& spec,
                            const AdmitLimits& limits = {});

}  // namespace weft::admit
