// MemberService: the workers' streams and heartbeats. Translates, calls the coordinator, translates
// back.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace weft {
class Coordinator;
}

namespace weft::service {

class WorkPool;

// The coordinator and the pool must outlive the service and the server that it is registered with.
std::unique_ptr<grpc::Service> MakeMemberService(Coordinator* coordinator, WorkPool* pool);

}  // namespace weft::service
