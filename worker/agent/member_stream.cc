#include "worker/agent/member_stream.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "grpcpp/grpcpp.h"

#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/wire/channel.h"
#include "fabric/wire/grpc_status.h"
#include "proto/member_api.grpc.pb.h"

namespace weft::agent {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
// How soon the sending thread notices that the stream broke.
constexpr absl::Duration kSendPoll = absl::Milliseconds(50);

}  // namespace

MemberStream::MemberStream(CoordinatorSource source, Outbox* outbox, Hooks hooks)
    : source_(std::move(source)),
      outbox_(outbox),
      hooks_(std::move(hooks)),
      away_since_(RealClock().Monotonic()) {
  thread_ = std::thread([this] { Loop(); });
}

MemberStream::~MemberStream() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  thread_.join();
}

void MemberStream::Loop() {
  absl::Duration pause = kFirstPause;
  std::string last_error;
  while (!stopping()) {
    const absl::Duration began = RealClock().Monotonic();
    const Status status = Serve();
    if (stopping()) return;
    if (status.ToString() != last_error) {
      last_error = status.ToString();
      LOG_WARN("coordinator not reached error={}", last_error);
    }
    if (RealClock().Monotonic() - began > kLongestPause) pause = kFirstPause;
    PauseBefore(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

Status MemberStream::Serve() {
  ASSIGN_OR_RETURN(const CoordinatorAddress found, source_.Find());
  const auto stub = v1::MemberService::NewStub(wire::MakeChannel(found.address, found.token));
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    context_ = &context;
  }
  auto forget = absl::MakeCleanup([this] {
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    if (registered_) away_since_ = RealClock().Monotonic();
    registered_ = false;
  });
  const auto stream = stub->Connect(&context);
  v1::MemberMessage hello;
  *hello.mutable_register_() = hooks_.registration();
  v1::MemberCommand command;
  if (!stream->Write(hello) || !stream->Read(&command) || !command.has_registered()) {
    context.TryCancel();
    return wire::FromGrpc(stream->Finish());
  }
  LOG_INFO("registered with coordinator={} cluster={}", found.address,
           command.registered().cluster());
  {
    absl::MutexLock lock(&mu_);
    registered_ = true;
    registered_at_ = RealClock().Monotonic();
  }
  hooks_.on_registered();
  std::atomic<bool> broken{false};
  std::thread sender([&] {
    while (!broken) {
      std::optional<v1::MemberMessage> message = outbox_->Take(kSendPoll);
      if (message.has_value() && !stream->Write(*message)) {
        outbox_->Return(*std::move(message));
        broken = true;
      }
    }
  });
  while (stream->Read(&command)) hooks_.on_command(command);
  broken = true;
  context.TryCancel();
  sender.join();
  const Status status = wire::FromGrpc(stream->Finish());
  return status.ok() ? Unavailable("the coordinator ended the stream") : status;
}

void MemberStream::ReconnectIfOlder(absl::Duration when) {
  absl::MutexLock lock(&mu_);
  if (registered_ && registered_at_ < when && context_ != nullptr) context_->TryCancel();
}

absl::Duration MemberStream::away() const {
  absl::MutexLock lock(&mu_);
  return registered_ ? absl::ZeroDuration() : RealClock().Monotonic() - away_since_;
}

bool MemberStream::stopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

void MemberStream::PauseBefore(absl::Duration pause) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
}

}  // namespace weft::agent
