// What a plan costs, before anything runs: bytes a rank, bytes on the wire, FLOPs, and the time
// that these take at given ceilings. Pure.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"
#include "fabric/opset/opset.h"

namespace weft::plan {

// Rates that a rank reaches at best. The defaults are a server core of recent years.
struct Ceilings {
  double core_flops = 60e9;    // a second, FP32, one core
  double memory_bytes = 10e9;  // a second, one rank
  double wire_bytes = 1.5e9;   // a second, sent by one rank
  double call_seconds = 2e-6;  // to start a kernel
  int32_t cores = 1;           // a rank
};

// `plan` has its program, lanes, shares and reduce mode.
StatusOr<Estimate> EstimatePlan(const OpSet& ops, const Plan& plan, const Ceilings& ceilings);

}  // namespace weft::plan
