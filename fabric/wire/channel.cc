#include "fabric/wire/channel.h"

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_interceptor.h"
#include "nlohmann/json.hpp"

#include "fabric/wire/auth.h"

namespace weft::wire {
namespace {

// Call credentials would need TLS; loopback has none, so the token is plain metadata.
class AddToken final : public grpc::experimental::Interceptor {
 public:
  explicit AddToken(const std::string* header) : header_(*header) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kAuthorizationKey, header_);
    }
    methods->Proceed();
  }

 private:
  const std::string& header_;
};

class AddTokenFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AddTokenFactory(const std::string& token) : header_("Bearer " + token) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new AddToken(&header_);  // gRPC owns it
  }

 private:
  const std::string header_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const std::string& token) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  // A connection of its own: heartbeats must not queue behind a busy stream.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Loopback never goes through a proxy.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<AddTokenFactory>(token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, grpc::InsecureChannelCredentials(), args, std::move(creators));
}

std::string EndpointPath(const std::string& state_dir) { return state_dir + "/endpoint"; }
std::string TokenPath(const std::string& state_dir) { return state_dir + "/token"; }

StatusOr<Endpoint> ReadEndpoint(const std::string& state_dir) {
  const std::string path = EndpointPath(state_dir);
  std::ifstream in(path);
  if (!in) {
    return NotFound("no coordinator has written ", path,
                    "; start weft-coordinator with this state_dir or name its address");
  }
  std::stringstream text;
  text << in.rdbuf();
  const auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("address") || !json["address"].is_string()) {
    return InvalidArgument(path, " is not the coordinator's {\"address\": \"host:port\", ...}");
  }
  Endpoint endpoint;
  endpoint.address = json["address"].get<std::string>();
  if (json.contains("pid") && json["pid"].is_number_integer()) {
    endpoint.pid = json["pid"].get<int64_t>();
  }
  return endpoint;
}

}  // namespace weft::wire
