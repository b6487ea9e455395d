// JobService: what clients call. Translates, calls the coordinator, translates back.
#pragma once

#include <memory>
#include <string>

#include "proto/client_api.pb.h"

namespace grpc {
class Service;
}

namespace weft {
class Coordinator;
}

namespace weft::service {

class WorkPool;

// The coordinator and the pool must outlive the service and the server that it is registered with.
std::unique_ptr<grpc::Service> MakeJobService(Coordinator* coordinator, WorkPool* pool,
                                              v1::GetVersionResponse version);

}  // namespace weft::service
