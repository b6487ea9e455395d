// Model families' sizes from proto. Pure.
#pragma once

#include "fabric/models/gpt.h"
#include "fabric/models/vit.h"
#include "proto/job.pb.h"

namespace weft::wire {

inline constexpr int64_t kCifar10Side = 32, kCifar10Classes = 10;

// Fields left out take the defaults that the proto names; whether the sizes make sense is
// BuildGpt's to say.
GptSpec FromProto(const v1::GptModel& model);

// What a model of `data` finds there: sizes that `model` leaves out, the channels' moments, the
// augmentation. BuildVit says what is missing.
VitSpec FromProto(const v1::VitModel& model, const v1::DataSpec& data);

}  // namespace weft::wire
