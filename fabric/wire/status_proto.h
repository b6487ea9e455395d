// The only converter between a Status with its ErrorDetail and the messages that carry one as data.
// Pure functions.
#pragma once

#include "fabric/base/error_detail.h"
#include "fabric/base/status.h"
#include "proto/types.pb.h"

namespace weft::wire {

v1::ErrorDetail ToProto(const ErrorDetail& detail);
// An action that this build does not know becomes kUnspecified.
ErrorDetail FromProto(const v1::ErrorDetail& detail);

v1::StatusProto ToProto(const Status& status);
// A code that is not canonical becomes UNKNOWN.
Status FromProto(const v1::StatusProto& status);

}  // namespace weft::wire
