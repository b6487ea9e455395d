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
  double fp32_flops = 60e9;    // a second, one core
  double tf32_flops = 60e9;    // in calls that may round to TF32
  double bf16_flops = 60e9;    // in calls with BF16 operands
  double memory_bytes = 10e9;  // a second, one rank
  double wire_bytes = 1.5e9;   // a second, sent by one rank
  double call_seconds = 2e-6;  // to start a kernel
  int32_t cores = 1;           // a rank
};

// An H200's, as products of some thousand rows and copies of some hundred MiB reach them, with its
// kernels in a graph and NVLink to the others.
constexpr Ceilings GpuCeilings() {
  return {.fp32_flops = 50e12,
          .tf32_flops = 330e12,
          .bf16_flops = 650e12,
          .memory_bytes = 4.0e12,
          .wire_bytes = 300e9,
          .call_seconds = 1.5e-6,
          .cores = 1};
}

// `plan` has its program, lanes, shares and reduce mode.
StatusOr<Estimate> EstimatePlan(const OpSet& ops, const Plan& plan, const Ceilings& ceilings);

}  // namespace weft::plan
