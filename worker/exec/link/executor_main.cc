#include "worker/exec/link/executor_main.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include "fabric/base/clock.h"
#include "fabric/base/error_detail.h"
#include "fabric/base/log.h"
#include "fabric/wire/grpc_status.h"
#include "fabric/wire/status_proto.h"
#include "proto/exec_api.grpc.pb.h"
#include "worker/exec/link/spec_from_proto.h"

namespace weft {
namespace {

// Foreign exceptions (allocation, protobuf) end here.
template <typename Body>
Status Guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of host memory");
  } catch (const std::exception& e) {
    return Internal("unexpected exception: ", e.what());
  }
}

class ExecutorService final : public v1::ExecutorService::Service {
 public:
  ExecutorService(int shared_memory_fd, absl::Duration entered)
      : shared_memory_fd_(shared_memory_fd), entered_(entered) {}

  grpc::Status Open(grpc::ServerContext*, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    return wire::ToGrpc(Guarded([&]() -> Status {
      ASSIGN_OR_RETURN(ExecSpec spec, SpecFromProto(request->spec()));
      spec.started = {.asked = absl::Nanoseconds(request->asked_ns()),
                      .forked = absl::Nanoseconds(request->forked_ns()),
                      .entered = entered_};
      auto executor = std::make_shared<Executor>(std::move(spec));
      ASSIGN_OR_RETURN(const Executor::Opened opened, executor->Open(request->host()));
      response->set_endpoint(opened.endpoint);
      response->set_data_digest(opened.data_digest);
      const absl::MutexLock lock(&mutex_);
      if (executor_ != nullptr) return FailedPrecondition("this executor was opened before");
      member_ = request->spec().member();
      executor_ = std::move(executor);
      return absl::OkStatus();
    }));
  }

  grpc::Status Prepare(grpc::ServerContext*, const v1::PrepareRequest* request,
                       v1::PrepareResponse* response) override {
    return wire::ToGrpc(Guarded([&]() -> Status {
      ASSIGN_OR_RETURN(const std::shared_ptr<Executor> executor, Opened());
      Executor::Group group;
      group.endpoints.assign(request->endpoints().begin(), request->endpoints().end());
      group.secret = request->secret();
      group.transport = request->transport() == v1::TRANSPORT_TCP
                            ? Executor::Transport::kTcp
                            : Executor::Transport::kSharedMemory;
      group.shared_memory_fd = shared_memory_fd_;
      ASSIGN_OR_RETURN(const Executor::Prepared prepared, executor->Prepare(group));
      response->set_memory_bytes(prepared.memory_bytes);
      response->set_start_step(prepared.start_step);
      return absl::OkStatus();
    }));
  }

  grpc::Status Run(grpc::ServerContext*, const v1::RunRequest*,
                   grpc::ServerWriter<v1::ExecutorReport>* writer) override {
    v1::MemberId member;
    RunResult result;
    const Status status = Guarded([&]() -> Status {
      ASSIGN_OR_RETURN(const std::shared_ptr<Executor> executor, Opened());
      {
        const absl::MutexLock lock(&mutex_);
        member = member_;
      }
      const ReportSink sink = [&](const Report& report) {
        v1::ExecutorReport message = ToProto(report);
        *message.mutable_member() = member;
        writer->Write(message);
      };
      ASSIGN_OR_RETURN(result, executor->Run(sink));
      return absl::OkStatus();
    });
    v1::ExecutorReport last;
    *last.mutable_member() = member;
    if (!status.ok()) {
      LOG_ERROR("run failed job={} rank={} error=\"{}\"", member.job(), member.rank(),
                status.message());
      *last.mutable_failed() = wire::ToProto(status);
    } else if (result.stopped) {
      *last.mutable_stopped() = ToProto(result);
    } else {
      *last.mutable_finished() = ToProto(result);
    }
    writer->WriteLast(last, grpc::WriteOptions());
    exit_code_ = status.ok() ? kExecutorFinished : kExecutorFailed;
    done_.Notify();
    return grpc::Status::OK;
  }

  grpc::Status Stop(grpc::ServerContext*, const v1::StopRequest* request,
                    v1::StopResponse*) override {
    const StatusOr<std::shared_ptr<Executor>> executor = Opened();
    if (!executor.ok()) return wire::ToGrpc(executor.status());
    switch (request->mode()) {
      case v1::STOP_MODE_STOP:
        (*executor)->Stop(StopMode::kStop);
        break;
      case v1::STOP_MODE_SAVE_AND_STOP:
        (*executor)->Stop(StopMode::kSaveAndStop);
        break;
      default:
        (*executor)->Stop(StopMode::kAbort);
    }
    return grpc::Status::OK;
  }

  void WaitForRun() { done_.WaitForNotification(); }
  bool run_ended() const { return done_.HasBeenNotified(); }
  int exit_code() const { return exit_code_; }  // once the run has ended

 private:
  StatusOr<std::shared_ptr<Executor>> Opened() {
    const absl::MutexLock lock(&mutex_);
    if (executor_ == nullptr) return FailedPrecondition("this executor was not opened");
    return executor_;
  }

  const int shared_memory_fd_;
  const absl::Duration entered_;  // when this process came here; monotonic
  absl::Mutex mutex_;
  std::shared_ptr<Executor> executor_ ABSL_GUARDED_BY(mutex_);
  v1::MemberId member_ ABSL_GUARDED_BY(mutex_);
  absl::Notification done_;
  int exit_code_ = kExecutorFailed;
};

// Ends the process when the other end of `fd` closes. The kernel says so even when the worker was
// killed, and unlike a parent-death signal it does not follow the thread that forked. A worker that
// has the run's last message closes its end too; that is no orphan.
void ExitWithPeer(int fd, std::shared_ptr<const ExecutorService> service) {
  std::thread([fd, service] {
    pollfd watched{fd, POLLRDHUP, 0};
    while (poll(&watched, 1, -1) < 0 && errno == EINTR) {
    }
    _exit(service->run_ended() ? service->exit_code() : kExecutorOrphaned);
  }).detach();
}

}  // namespace

int RunExecutor(int fd, int shared_memory_fd) {
  const absl::Duration entered = RealClock().Monotonic();
  const int watched = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (watched < 0 || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
    LOG_ERROR("descriptor {} is no socket; executors are started by a worker", fd);
    return kExecutorUsage;
  }
  // Shared with the watching thread, which outlives this function.
  const auto service = std::make_shared<ExecutorService>(shared_memory_fd, entered);
  grpc::ServerBuilder builder;
  builder.RegisterService(service.get());
  builder.SetMaxReceiveMessageSize(64 << 20);
  // One rank's process needs few threads: a running Run, and a Stop beside it.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    LOG_ERROR("cannot start the executor's server");
    return kExecutorFailed;
  }
  grpc::AddInsecureChannelFromFd(server.get(), fd);
  ExitWithPeer(watched, service);
  service->WaitForRun();
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  return service->exit_code();
}

}  // namespace weft
