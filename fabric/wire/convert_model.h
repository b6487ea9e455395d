// Model families' sizes from proto. Pure.
#pragma once

#include "fabric/models/gpt.h"
#include "proto/job.pb.h"

namespace weft::wire {

// Fields left out take the defaults that the proto names; whether the sizes make sense is
// BuildGpt's to say.
GptSpec FromProto(const v1::GptModel& model);

}  // namespace weft::wire
