#include "worker/agent/heartbeat.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"

#include "fabric/base/clock.h"
#include "fabric/wire/channel.h"
#include "proto/member_api.grpc.pb.h"

namespace weft::agent {

Heartbeat::Heartbeat(CoordinatorSource source, v1::HeartbeatRequest beat, absl::Duration interval,
                     std::function<void(absl::Duration)> on_unknown)
    : source_(std::move(source)),
      beat_(std::move(beat)),
      interval_(interval),
      on_unknown_(std::move(on_unknown)) {
  thread_ = std::thread([this] { Loop(); });
}

Heartbeat::~Heartbeat() {
  stop_.Notify();
  thread_.join();
}

void Heartbeat::Loop() {
  std::optional<CoordinatorAddress> dialled;
  std::unique_ptr<v1::MemberService::Stub> stub;
  do {
    const StatusOr<CoordinatorAddress> found = source_.Find();
    if (!found.ok()) continue;
    if (dialled != *found) {
      stub = v1::MemberService::NewStub(wire::MakeChannel(found->address, found->token));
      dialled = *found;
    }
    const absl::Duration asked = RealClock().Monotonic();
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + 2 * interval_));
    v1::HeartbeatResponse answer;
    const grpc::Status status = stub->Heartbeat(&context, beat_, &answer);
    if (status.ok() && !answer.known()) on_unknown_(asked);
  } while (!stop_.WaitForNotificationWithTimeout(interval_));
}

}  // namespace weft::agent
