// What the wire says of a member, as the executor's plain values.
#pragma once

#include "fabric/base/status.h"
#include "proto/exec_api.pb.h"
#include "worker/exec/exec_spec.h"
#include "worker/exec/executor.h"

namespace weft {

// Validates as it converts: InvalidArgument names the field.
StatusOr<ExecSpec> SpecFromProto(const v1::MemberSpec& proto);

v1::JobResult ToProto(const RunResult& result);
v1::ExecutorReport ToProto(const Report& report);

}  // namespace weft
