#include "worker/agent/outbox.h"

#include <algorithm>
#include <utility>

namespace weft::agent {
namespace {

bool MayBeDropped(const v1::MemberMessage& m) {
  return m.has_log() || (m.has_report() && m.report().has_progress());
}

}  // namespace

void Outbox::Add(v1::MemberMessage message) {
  absl::MutexLock lock(&mu_);
  messages_.push_back(std::move(message));
  if (messages_.size() <= max_messages_) return;
  const auto oldest = std::find_if(messages_.begin(), messages_.end(), MayBeDropped);
  if (oldest != messages_.end()) messages_.erase(oldest);
}

void Outbox::Return(v1::MemberMessage message) {
  absl::MutexLock lock(&mu_);
  messages_.push_front(std::move(message));
}

std::optional<v1::MemberMessage> Outbox::Take(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !messages_.empty(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&some), limit)) return std::nullopt;
  v1::MemberMessage message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

bool Outbox::WaitEmpty(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return messages_.empty(); };
  return mu_.AwaitWithTimeout(absl::Condition(&none), limit);
}

}  // namespace weft::agent
