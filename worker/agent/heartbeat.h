// Heartbeat: tells the coordinator that this worker lives, from a thread and over a connection of
// its own, so that no busy stream looks like silence. Its end stops the thread.
#pragma once

#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "proto/member_api.pb.h"
#include "worker/agent/coordinator_address.h"

namespace weft::agent {

class Heartbeat {
 public:
  // `on_unknown` is called from the thread when the coordinator does not know this worker, with the
  // monotonic time at which it was asked.
  Heartbeat(CoordinatorSource source, v1::HeartbeatRequest beat, absl::Duration interval,
            std::function<void(absl::Duration)> on_unknown);
  ~Heartbeat();

 private:
  void Loop();

  const CoordinatorSource source_;
  const v1::HeartbeatRequest beat_;
  const absl::Duration interval_;
  const std::function<void(absl::Duration)> on_unknown_;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace weft::agent
