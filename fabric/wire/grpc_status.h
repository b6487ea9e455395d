// Status over gRPC: the ErrorDetail travels serialized in the call's error details. Pure functions.
#pragma once

#include "grpcpp/support/status.h"

#include "fabric/base/status.h"

namespace weft::wire {

// Messages are cut to 4 KiB: trailers have a small limit.
grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);

}  // namespace weft::wire
