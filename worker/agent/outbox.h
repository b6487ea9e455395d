// Outbox: what this worker has to say, kept in order while the coordinator is away. Bounded: when
// it is full the oldest log line or progress report goes first. Thread-safe.
#pragma once

#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/member_api.pb.h"

namespace weft::agent {

class Outbox {
 public:
  explicit Outbox(size_t max_messages) : max_messages_(max_messages) {}

  void Add(v1::MemberMessage message);
  // Back to the front: it could not be sent.
  void Return(v1::MemberMessage message);
  // Waits at most `limit`.
  std::optional<v1::MemberMessage> Take(absl::Duration limit);
  // True when it became empty within `limit`.
  bool WaitEmpty(absl::Duration limit);

 private:
  const size_t max_messages_;
  absl::Mutex mu_;
  std::deque<v1::MemberMessage> messages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::agent
