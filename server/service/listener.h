// Listener: the coordinator's gRPC server: both services, health, the token check on every call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "fabric/base/status.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace weft::service {

class Listener {
 public:
  // Listens on `address` ("host:port", port 0: the system chooses). Only loopback, since there is
  // no TLS yet: FailedPrecondition otherwise. Unavailable when the port is taken. The services must
  // outlive it.
  static StatusOr<std::unique_ptr<Listener>> Open(const std::string& address,
                                                  const std::string& token,
                                                  const std::vector<grpc::Service*>& services);
  // Ends open calls after `grace`.
  void Shutdown(absl::Duration grace);
  ~Listener();

  const std::string& address() const { return address_; }  // with the real port

 private:
  Listener(std::unique_ptr<grpc::Server> server, std::string address);
  std::unique_ptr<grpc::Server> server_;
  const std::string address_;
};

}  // namespace weft::service
