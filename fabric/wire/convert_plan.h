// Plans and programs to and from proto. FromProto checks shapes, ranks of strides, enums, lanes and
// shares; whether operands lie in their buffers is ValidateProgram's to say, before a program is
// run. Pure functions.
#pragma once

#include "fabric/base/status.h"
#include "fabric/mesh/plan.h"
#include "proto/plan.pb.h"

namespace weft::wire {

v1::Program ToProto(const Program& program);
StatusOr<Program> FromProto(const v1::Program& proto);

v1::Numerics ToProto(const Numerics& numerics);
Numerics FromProto(const v1::Numerics& proto);

v1::Estimate ToProto(const Estimate& estimate);
Estimate FromProto(const v1::Estimate& proto);

StatusOr<ComputePrecision> FromProto(v1::Precision precision);

v1::Plan ToProto(const Plan& plan);
// Beyond the program: shares are one a rank, not empty, and together all lanes in order.
StatusOr<Plan> FromProto(const v1::Plan& proto);

}  // namespace weft::wire
