#include "client/client.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

#include "fabric/base/check.h"
#include "fabric/base/clock.h"
#include "fabric/wire/auth.h"
#include "fabric/wire/channel.h"
#include "fabric/wire/grpc_status.h"
#include "proto/client_api.grpc.pb.h"

namespace weft {
namespace {

using Stub = v1::JobService::StubInterface;

Status ConvertError(const grpc::Status& error, const std::string& address) {
  const Status status = wire::FromGrpc(error);
  if (status.code() == absl::StatusCode::kUnavailable) {
    return Annotate(status, absl::StrCat("no coordinator answers at ", address));
  }
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    return Annotate(status,
                    absl::StrCat("the coordinator at ", address, " did not answer in time"));
  }
  return status;
}

}  // namespace

std::string MakeRequestId() {
  unsigned char bytes[16];
  WEFT_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0F) | 0x40);  // version 4
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3F) | 0x80);
  const std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes), sizeof bytes));
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

struct Client::Rpc {
  std::unique_ptr<Stub> stub;
  absl::Mutex mutex;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::set<grpc::ClientContext*> streams ABSL_GUARDED_BY(mutex);

  // Only for calls that may reach the coordinator twice.
  template <typename Request, typename Response>
  StatusOr<Response> Call(const ClientOptions& options,
                          grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
                          const Request& request) {
    const Deadline retry_until = Deadline::After(options.retry_for);
    absl::Duration pause = absl::Milliseconds(50);
    while (true) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           absl::ToChronoMilliseconds(options.call_timeout));
      Response response;
      const grpc::Status status = (stub.get()->*method)(&context, request, &response);
      if (status.ok()) return response;
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE || retry_until.Remaining() < pause) {
        return ConvertError(status, options.address);
      }
      absl::SleepFor(pause);
      pause = std::min(2 * pause, absl::Seconds(1));
    }
  }

  template <typename Response>
  Status Read(const ClientOptions& options, grpc::ClientContext* context,
              std::unique_ptr<grpc::ClientReaderInterface<Response>> reader,
              absl::FunctionRef<void(const Response&)> on_message) {
    {
      absl::MutexLock lock(&mutex);
      streams.insert(context);
      if (stopped) context->TryCancel();
    }
    Response response;
    while (reader->Read(&response)) on_message(response);
    const grpc::Status status = reader->Finish();
    absl::MutexLock lock(&mutex);
    streams.erase(context);
    if (stopped) return absl::CancelledError("interrupted");
    return status.ok() ? absl::OkStatus() : ConvertError(status, options.address);
  }
};

StatusOr<ClientOptions> Client::Locate(const std::string& address, const std::string& token_file,
                                       const std::string& state_dir) {
  ClientOptions options;
  options.address = address;
  if (address.empty()) {
    ASSIGN_OR_RETURN(const wire::Endpoint endpoint, wire::ReadEndpoint(state_dir));
    options.address = endpoint.address;
  }
  auto token = wire::ReadTokenFile(token_file.empty() ? wire::TokenPath(state_dir) : token_file);
  if (token.status().code() == absl::StatusCode::kFailedPrecondition) {
    return absl::PermissionDeniedError(token.status().message());
  }
  if (!token.ok()) return token.status();
  options.token = *std::move(token);
  return options;
}

Client::Client(ClientOptions options)
    : options_(std::move(options)), rpc_(std::make_unique<Rpc>()) {
  rpc_->stub = v1::JobService::NewStub(wire::MakeChannel(options_.address, options_.token));
}

Client::~Client() = default;

StatusOr<v1::Job> Client::Submit(const v1::JobSpec& spec, const std::string& request_id) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::SubmitJob, request));
  return std::move(*response.mutable_job());
}

StatusOr<v1::Job> Client::Validate(const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::SubmitJob, request));
  return std::move(*response.mutable_job());
}

StatusOr<v1::Plan> Client::Plan(const v1::JobSpec& spec, int ranks) {
  v1::PlanJobRequest request;
  *request.mutable_spec() = spec;
  request.set_ranks(ranks);
  ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::PlanJob, request));
  return std::move(*response.mutable_plan());
}

StatusOr<v1::Job> Client::Get(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::GetJob, request));
  return std::move(*response.mutable_job());
}

StatusOr<std::vector<v1::Job>> Client::List(int64_t limit) {
  constexpr int64_t kPage = 500;
  std::vector<v1::Job> jobs;
  v1::ListJobsRequest request;
  do {
    const int64_t left = limit > 0 ? limit - static_cast<int64_t>(jobs.size()) : kPage;
    request.set_page_size(static_cast<int32_t>(std::min(kPage, left)));
    ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::ListJobs, request));
    for (v1::Job& job : *response.mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() &&
           (limit <= 0 || static_cast<int64_t>(jobs.size()) < limit));
  return jobs;
}

StatusOr<v1::Job> Client::Cancel(const std::string& id, CancelMode mode) {
  v1::CancelJobRequest request;
  request.set_id(id);
  request.set_save(mode == CancelMode::kSave);
  ASSIGN_OR_RETURN(auto response, rpc_->Call(options_, &Stub::CancelJob, request));
  return std::move(*response.mutable_job());
}

StatusOr<std::vector<v1::WorkerView>> Client::Workers() {
  ASSIGN_OR_RETURN(auto response,
                   rpc_->Call(options_, &Stub::ListWorkers, v1::ListWorkersRequest()));
  return std::vector<v1::WorkerView>(response.workers().begin(), response.workers().end());
}

StatusOr<v1::GetVersionResponse> Client::Version() {
  return rpc_->Call(options_, &Stub::GetVersion, v1::GetVersionRequest());
}

Status Client::StreamEvents(const std::string& id, int64_t after_sequence,
                            absl::FunctionRef<void(const v1::JobEvent&)> on_event) {
  v1::WatchJobRequest request;
  request.set_id(id);
  request.set_after_sequence(after_sequence);
  grpc::ClientContext context;  // without a deadline: a job may run for weeks
  return rpc_->Read<v1::WatchJobResponse>(
      options_, &context, rpc_->stub->WatchJob(&context, request),
      [&](const v1::WatchJobResponse& response) { on_event(response.event()); });
}

Status Client::StreamLogs(const v1::WatchLogsRequest& request,
                          absl::FunctionRef<void(const v1::WatchLogsResponse&)> on_line) {
  grpc::ClientContext context;
  return rpc_->Read<v1::WatchLogsResponse>(options_, &context,
                                           rpc_->stub->WatchLogs(&context, request), on_line);
}

void Client::StopStreams() {
  absl::MutexLock lock(&rpc_->mutex);
  rpc_->stopped = true;
  for (grpc::ClientContext* context : rpc_->streams) context->TryCancel();
}

bool Client::streams_stopped() const {
  absl::MutexLock lock(&rpc_->mutex);
  return rpc_->stopped;
}

}  // namespace weft
