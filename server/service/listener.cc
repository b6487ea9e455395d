#include "server/service/listener.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"

#include "fabric/wire/auth.h"
#include "fabric/wire/channel.h"

namespace weft::service {
namespace {

struct HostPort {
  std::string host;
  int32_t port = 0;
};

StatusOr<HostPort> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort parts;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parts.port) || parts.port < 0 ||
      parts.port > 65535) {
    return InvalidArgument("listen address '", address,
                           "' is not host:port, such as 127.0.0.1:7070");
  }
  parts.host = address.substr(0, colon);
  return parts;
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == std::string::npos);
}

}  // namespace

Listener::Listener(std::unique_ptr<grpc::Server> server, std::string address)
    : server_(std::move(server)), address_(std::move(address)) {}

Listener::~Listener() { Shutdown(absl::ZeroDuration()); }

void Listener::Shutdown(absl::Duration grace) {
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address,
                                                   const std::string& token,
                                                   const std::vector<grpc::Service*>& services) {
  ASSIGN_OR_RETURN(const HostPort parts, SplitAddress(address));
  if (!IsLoopback(parts.host)) {
    return FailedPrecondition("listen address ", address,
                              " is not loopback: calls would travel unencrypted, since TLS does "
                              "not exist yet; use 127.0.0.1");
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, wire::TokenServerCredentials(token), &port);
  builder.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  builder.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  // A second server on the same port is an error, not a partner.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Unavailable("cannot listen on ", address,
                       "; is the port taken? port 0 lets the system choose");
  }
  return std::unique_ptr<Listener>(
      new Listener(std::move(server), absl::StrCat(parts.host, ":", port)));
}

}  // namespace weft::service
