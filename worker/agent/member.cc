#include "worker/agent/member.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/wire/status_proto.h"

namespace weft::agent {
namespace {

// Hashing a large file and restoring a large checkpoint take a while.
constexpr absl::Duration kOpenLimit = absl::Minutes(10);
constexpr absl::Duration kPrepareLimit = absl::Minutes(10);
// After its last report a process ends by itself.
constexpr absl::Duration kExitGrace = absl::Seconds(10);
// Between the end of a process's socket and the news of its exit.
constexpr absl::Duration kExitNews = absl::Seconds(1);

}  // namespace

Member::Member(MemberOptions options)
    : options_(std::move(options)),
      id_(options_.start.spec().member()),
      asked_(RealClock().Monotonic()) {
  thread_ = std::thread([this] { Live(); });
}

Member::~Member() {
  End();
  thread_.join();
}

void Member::Live() {
  if (const Status status = StartProcess(); !status.ok()) {
    v1::MemberMessage message;
    *message.mutable_opened()->mutable_member() = id_;
    *message.mutable_opened()->mutable_error() = wire::ToProto(status);
    Say(std::move(message));
    SayExited({.exit_code = 1});
    return;
  }
  if (Open() && PrepareGroup()) RunToEnd();
  {
    absl::MutexLock lock(&mu_);
    const auto gone = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return child_exit_.has_value(); };
    mu_.Await(absl::Condition(&gone));
  }
  std::unique_ptr<Child> child;
  ChildExit exit;
  {
    absl::MutexLock lock(&mu_);
    child = std::move(child_);
    exit = *child_exit_;
  }
  child.reset();
  SayExited(exit);
}

Status Member::StartProcess() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return ErrnoStatus("socket pair for an executor", errno);
  }
  link_ = std::make_unique<ExecutorLink>(fds[0]);
  ChildOptions child;
  child.argv = {options_.program, "exec", "--fd", absl::StrCat(kChildSocketFd)};
  if (options_.shared_memory_fd >= 0) {
    child.argv.insert(child.argv.end(), {"--shm-fd", absl::StrCat(kChildSharedMemoryFd)});
  }
  child.argv.insert(child.argv.end(), {"--log_level", options_.log_level});
  child.socket_fd = fds[1];
  child.shared_memory_fd = options_.shared_memory_fd;
  child.on_line = [this](std::string line) {
    v1::MemberMessage message;
    *message.mutable_log()->mutable_member() = id_;
    message.mutable_log()->set_line(std::move(line));
    options_.outbox->Add(std::move(message));
  };
  child.on_exit = [this](ChildExit exit) { OnExit(exit); };
  forked_ = RealClock().Monotonic();
  StatusOr<std::unique_ptr<Child>> started = Child::Start(std::move(child));
  // The process has its own copy; ours would keep the socket open after its end.
  close(fds[1]);
  RETURN_IF_ERROR(started.status());
  LOG_INFO("executor started job={} generation={} rank={} pid={}", id_.job(), id_.generation(),
           id_.rank(), (*started)->pid());
  absl::MutexLock lock(&mu_);
  child_ = *std::move(started);
  // The end may have been asked for before there was anything to end.
  if (ending_) child_->Kill();
  return absl::OkStatus();
}

bool Member::Open() {
  v1::OpenRequest request;
  *request.mutable_spec() = options_.start.spec();
  request.set_host(options_.host);
  request.set_asked_ns(absl::ToInt64Nanoseconds(asked_));
  request.set_forked_ns(absl::ToInt64Nanoseconds(forked_));
  const StatusOr<v1::OpenResponse> opened = link_->Open(request, kOpenLimit);
  v1::MemberMessage message;
  *message.mutable_opened()->mutable_member() = id_;
  if (opened.ok()) {
    *message.mutable_opened()->mutable_opened() = *opened;
  } else {
    const std::optional<Status> error = ErrorToReport(opened.status());
    if (!error.has_value()) return false;
    *message.mutable_opened()->mutable_error() = wire::ToProto(*error);
  }
  Say(std::move(message));
  return opened.ok();
}

bool Member::PrepareGroup() {
  v1::PrepareRequest request;
  {
    absl::MutexLock lock(&mu_);
    const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return prepare_.has_value() || ending_ || child_exit_.has_value();
    };
    mu_.Await(absl::Condition(&told));
    if (ending_ || child_exit_.has_value()) return false;
    request = *prepare_;
  }
  const StatusOr<v1::PrepareResponse> prepared = link_->Prepare(request, kPrepareLimit);
  v1::MemberMessage message;
  *message.mutable_prepared()->mutable_member() = id_;
  if (prepared.ok()) {
    *message.mutable_prepared()->mutable_prepared() = *prepared;
  } else {
    const std::optional<Status> error = ErrorToReport(prepared.status());
    if (!error.has_value()) return false;
    *message.mutable_prepared()->mutable_error() = wire::ToProto(*error);
  }
  Say(std::move(message));
  return prepared.ok();
}

void Member::RunToEnd() {
  {
    absl::MutexLock lock(&mu_);
    const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return run_ || ending_ || child_exit_.has_value();
    };
    mu_.Await(absl::Condition(&told));
    if (ending_ || child_exit_.has_value()) return;
  }
  bool last = false;
  const Status status = link_->Run([&](v1::ExecutorReport report) {
    last = report.has_finished() || report.has_stopped() || report.has_failed();
    OnReport(std::move(report));
  });
  if (!last) {
    const std::optional<Status> error =
        ErrorToReport(status.ok() ? Internal("the run ended without a last report") : status);
    if (error.has_value()) {
      v1::ExecutorReport report;
      *report.mutable_failed() = wire::ToProto(*error);
      OnReport(std::move(report));
    }
  }
  if (!WaitChildExited(kExitGrace)) {
    LOG_WARN("executor does not exit, killed job={} rank={}", id_.job(), id_.rank());
    absl::MutexLock lock(&mu_);
    if (child_ != nullptr) child_->Kill();
  }
}

void Member::OnReport(v1::ExecutorReport report) {
  *report.mutable_member() = id_;
  {
    absl::MutexLock lock(&mu_);
    if (report.has_progress()) last_step_ = std::max(last_step_, report.progress().step());
    if (report.has_failed()) said_ = report.failed();
  }
  v1::MemberMessage message;
  const bool last = report.has_finished() || report.has_stopped() || report.has_failed();
  *message.mutable_report() = std::move(report);
  if (last) {
    Say(std::move(message));
  } else {
    options_.outbox->Add(std::move(message));
  }
}

void Member::OnExit(ChildExit exit) {
  absl::MutexLock lock(&mu_);
  child_exit_ = exit;
}

std::optional<Status> Member::ErrorToReport(const Status& status) {
  if (absl::IsUnavailable(status) && WaitChildExited(kExitNews)) return std::nullopt;
  return status;
}

void Member::Say(v1::MemberMessage message) {
  absl::MutexLock lock(&mu_);
  facts_.push_back(message);
  options_.outbox->Add(std::move(message));
}

void Member::SayExited(const ChildExit& exit) {
  LOG_INFO("executor exited job={} generation={} rank={} exit_code={} signal={}", id_.job(),
           id_.generation(), id_.rank(), exit.exit_code, exit.signal);
  v1::MemberMessage message;
  v1::MemberExited* exited = message.mutable_exited();
  *exited->mutable_member() = id_;
  exited->set_exit_code(exit.exit_code);
  exited->set_signal(exit.signal);
  exited->set_out_of_memory(exit.out_of_memory);
  absl::MutexLock lock(&mu_);
  exited->set_last_step(last_step_);
  if (said_.code() != 0) *exited->mutable_error() = said_;
  facts_.push_back(message);
  options_.outbox->Add(std::move(message));
  exited_ = true;
}

void Member::Prepare(const v1::PrepareRequest& request) {
  absl::MutexLock lock(&mu_);
  if (!prepare_.has_value()) prepare_ = request;
}

void Member::Run() {
  absl::MutexLock lock(&mu_);
  run_ = true;
}

void Member::Stop(v1::StopMode mode) {
  {
    absl::MutexLock lock(&mu_);
    if (run_ && !child_exit_.has_value()) {
      link_->Stop(mode);
      return;
    }
  }
  End();
}

void Member::End() {
  absl::MutexLock lock(&mu_);
  ending_ = true;
  if (child_ != nullptr) child_->Kill();
}

void Member::Resend() {
  absl::MutexLock lock(&mu_);
  for (const v1::MemberMessage& fact : facts_) options_.outbox->Add(fact);
}

bool Member::exited() const {
  absl::MutexLock lock(&mu_);
  return exited_;
}

bool Member::WaitExited(absl::Duration limit) const {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&exited_), limit);
}

bool Member::WaitChildExited(absl::Duration limit) const {
  absl::MutexLock lock(&mu_);
  const auto gone = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return child_exit_.has_value() || ending_;
  };
  return mu_.AwaitWithTimeout(absl::Condition(&gone), limit);
}

}  // namespace weft::agent
