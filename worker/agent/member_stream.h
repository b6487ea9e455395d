// MemberStream: the one stream to the coordinator: connects, registers, sends what the outbox
// holds, hands on the commands, and connects again with growing pauses when it breaks. Owns two
// threads; its end stops them.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/member_api.pb.h"
#include "worker/agent/coordinator_address.h"
#include "worker/agent/outbox.h"

namespace grpc {
class ClientContext;
}

namespace weft::agent {

class MemberStream {
 public:
  struct Hooks {
    // The registration of a new connection.
    std::function<v1::Registration()> registration;
    // It was accepted: say again what must be known.
    std::function<void()> on_registered;
    std::function<void(const v1::MemberCommand&)> on_command;
  };
  MemberStream(CoordinatorSource source, Outbox* outbox, Hooks hooks);
  ~MemberStream();

  // Breaks the stream if it was registered before `when` (monotonic), so that a new one registers.
  void ReconnectIfOlder(absl::Duration when);
  // How long there has been no registered stream; zero while there is one.
  absl::Duration away() const;

 private:
  void Loop();
  // One connection, from dialling to its end.
  Status Serve();
  bool stopping() const;
  void PauseBefore(absl::Duration pause);

  const CoordinatorSource source_;
  Outbox* const outbox_;
  const Hooks hooks_;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration registered_at_ ABSL_GUARDED_BY(mu_);
  absl::Duration away_since_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::thread thread_;
};

}  // namespace weft::agent
