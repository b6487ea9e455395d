// Channels to the coordinator: every call on one carries the bearer token.
#pragma once

#include <memory>
#include <string>

#include "fabric/base/status.h"

namespace grpc {
class Channel;
}

namespace weft::wire {

// Largest message either side takes.
inline constexpr int kMaxMessageBytes = 64 << 20;

// Opens lazily; thread-safe as gRPC's channels are. Two channels never share a connection.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const std::string& token);

struct Endpoint {
  std::string address;  // "host:port"
  int64_t pid = 0;      // of the coordinator
};

// <state_dir>/endpoint, one line of JSON that the coordinator writes once it listens.
std::string EndpointPath(const std::string& state_dir);
std::string TokenPath(const std::string& state_dir);

// NotFound when no coordinator has written the file; InvalidArgument when it is not the expected
// JSON.
StatusOr<Endpoint> ReadEndpoint(const std::string& state_dir);

}  // namespace weft::wire
