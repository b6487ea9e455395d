#include "worker/agent/executor_link.h"

#include <fcntl.h>

#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"

#include "fabric/wire/channel.h"
#include "fabric/wire/grpc_status.h"
#include "proto/exec_api.grpc.pb.h"

namespace weft::agent {
namespace {

constexpr absl::Duration kStopLimit = absl::Seconds(10);

void SetLimit(grpc::ClientContext& context, absl::Duration limit) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
}

}  // namespace

struct ExecutorLink::Rpc {
  std::unique_ptr<v1::ExecutorService::Stub> stub;
};

ExecutorLink::ExecutorLink(int fd) : rpc_(std::make_unique<Rpc>()) {
  // A blocking descriptor hangs gRPC without a word.
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
  args.SetMaxSendMessageSize(wire::kMaxMessageBytes);
  rpc_->stub =
      v1::ExecutorService::NewStub(grpc::CreateCustomInsecureChannelFromFd("executor", fd, args));
}

ExecutorLink::~ExecutorLink() = default;

StatusOr<v1::OpenResponse> ExecutorLink::Open(const v1::OpenRequest& request,
                                              absl::Duration limit) {
  grpc::ClientContext context;
  SetLimit(context, limit);
  v1::OpenResponse response;
  RETURN_IF_ERROR(wire::FromGrpc(rpc_->stub->Open(&context, request, &response)));
  return response;
}

StatusOr<v1::PrepareResponse> ExecutorLink::Prepare(const v1::PrepareRequest& request,
                                                    absl::Duration limit) {
  grpc::ClientContext context;
  SetLimit(context, limit);
  v1::PrepareResponse response;
  RETURN_IF_ERROR(wire::FromGrpc(rpc_->stub->Prepare(&context, request, &response)));
  return response;
}

Status ExecutorLink::Run(const std::function<void(v1::ExecutorReport)>& on_report) {
  grpc::ClientContext context;
  const auto reader = rpc_->stub->Run(&context, v1::RunRequest());
  v1::ExecutorReport report;
  while (reader->Read(&report)) on_report(std::move(report));
  return wire::FromGrpc(reader->Finish());
}

void ExecutorLink::Stop(v1::StopMode mode) {
  struct Call {
    grpc::ClientContext context;
    v1::StopRequest request;
    v1::StopResponse response;
  };
  auto call = std::make_shared<Call>();
  SetLimit(call->context, kStopLimit);
  call->request.set_mode(mode);
  rpc_->stub->async()->Stop(&call->context, &call->request, &call->response,
                            [call](const grpc::Status&) {});
}

}  // namespace weft::agent
