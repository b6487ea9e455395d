// An executor for tests of the agent: answers on descriptor 3 and behaves as its job's name says.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/synchronization/notification.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/server_posix.h"

#include "proto/exec_api.grpc.pb.h"

namespace weft {
namespace {

// By the signal, also where a sanitizer handles it.
void Crash() {
  std::signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

class FakeExecutor final : public v1::ExecutorService::Service {
 public:
  grpc::Status Open(grpc::ServerContext*, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    behaviour_ = request->spec().member().job();
    if (behaviour_ == "open_fails") {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no such data");
    }
    if (behaviour_ == "open_crashes") Crash();
    response->set_endpoint(request->host() + ":1");
    response->set_data_digest("0:0");
    return grpc::Status::OK;
  }
  grpc::Status Prepare(grpc::ServerContext*, const v1::PrepareRequest*,
                       v1::PrepareResponse* response) override {
    response->set_memory_bytes(5);
    return grpc::Status::OK;
  }
  grpc::Status Run(grpc::ServerContext*, const v1::RunRequest*,
                   grpc::ServerWriter<v1::ExecutorReport>* writer) override {
    v1::ExecutorReport report;
    report.mutable_progress()->set_step(3);
    writer->Write(report);
    std::printf("in step 4\n");
    std::fflush(stdout);
    if (behaviour_ == "crash") Crash();
    if (behaviour_ == "exit7") _exit(7);
    if (behaviour_ == "wait") stop_.WaitForNotification();
    report.Clear();
    if (behaviour_ == "fail") {
      report.mutable_failed()->set_code(15);
      report.mutable_failed()->set_message("checkpoint is damaged");
      exit_code_ = 1;
    } else if (behaviour_ == "wait") {
      report.mutable_stopped()->set_steps(3);
    } else {
      report.mutable_finished()->set_steps(3);
    }
    writer->WriteLast(report, grpc::WriteOptions());
    done_.Notify();
    return grpc::Status::OK;
  }
  grpc::Status Stop(grpc::ServerContext*, const v1::StopRequest*, v1::StopResponse*) override {
    stop_.Notify();
    return grpc::Status::OK;
  }

  int Wait() {
    done_.WaitForNotification();
    return exit_code_;
  }

 private:
  std::string behaviour_;
  absl::Notification stop_, done_;
  int exit_code_ = 0;
};

std::atomic<bool> finishing{false};

int Main() {
  const int watched = fcntl(3, F_DUPFD_CLOEXEC, 10);
  fcntl(3, F_SETFL, fcntl(3, F_GETFL) | O_NONBLOCK);
  std::thread([watched] {
    pollfd fds{watched, POLLRDHUP, 0};
    poll(&fds, 1, -1);
    // Our own shutdown looks like the other end's.
    if (!finishing) _exit(10);
  }).detach();
  FakeExecutor service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  grpc::AddInsecureChannelFromFd(server.get(), 3);
  const int code = service.Wait();
  finishing = true;
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  return code;
}

}  // namespace
}  // namespace weft

int main() { return weft::Main(); }
