// Whether a program that came over the wire may be run: afterwards no call can touch a byte outside
// its buffers. Pure; safe on hostile input.
#pragma once

#include <cstdint>

#include "fabric/base/status.h"
#include "fabric/graph/program.h"
#include "fabric/opset/opset.h"

namespace weft {

// Slots within the flat buffers and apart; every call's results as its op infers them; every
// operand, with its strides, inside its buffer and aligned; sections write only what is theirs
// (train: kGrad, kStats, arena; update: also kParam, kState, kLow; evaluate: kStats, arena;
// predict: arena; refresh: kLow); kLow only with low_copy, which comes with a refresh section;
// arena_bytes at most 2^46. InvalidArgument names section, node and operand.
Status ValidateProgram(const OpSet& ops, const Program& program);

}  // namespace weft
