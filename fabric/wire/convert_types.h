// Element types, shapes and lane ranges to and from proto. FromProto functions are the checks of
// foreign bytes: safe on hostile input, InvalidArgument says what is wrong. Pure functions.
#pragma once

#include "google/protobuf/repeated_field.h"

#include "fabric/base/lane_tree.h"
#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"
#include "proto/plan.pb.h"
#include "proto/types.pb.h"

namespace weft::wire {

v1::TensorMeta ToProto(const TensorMeta& meta);
StatusOr<TensorMeta> FromProto(const v1::TensorMeta& proto);

// Rank, dimensions and bytes checked as CheckShape does.
StatusOr<Shape> ShapeFromProto(DType dtype, const google::protobuf::RepeatedField<int64_t>& dims);

v1::LaneRange ToProto(LaneRange range);
LaneRange FromProto(const v1::LaneRange& proto);

}  // namespace weft::wire
