// The model's part of admission: a family is expanded once, a client's graph validated. Pure.
#pragma once

#include <cstdint>

#include "fabric/graph/validate.h"
#include "fabric/opset/opset.h"
#include "proto/job.pb.h"
#include "server/admit/problems.h"

namespace weft::admit {

// Tokens that a sample has room for; 0 when the model does not say.
int64_t ContextOf(const v1::ModelSpec& model);

// Fills in the model's defaults; adds to `problems` what is wrong with it at the size of one lane,
// its backward pass included. `spec` has its other fields checked already, and ones that are wrong
// are left out of account.
void CheckModel(const OpSet& ops, const GraphLimits& limits, v1::JobSpec* spec, Problems* problems);

}  // namespace weft::admit
