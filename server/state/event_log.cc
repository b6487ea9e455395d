#include "server/state/event_log.h"

#include <algorithm>
#include <utility>

namespace weft::state {
namespace {

v1::JobEvent GapBefore(const v1::JobEvent& first) {
  v1::JobEvent gap;
  gap.set_sequence(first.sequence() - 1);
  *gap.mutable_time() = first.time();
  gap.set_gap(true);
  return gap;
}

}  // namespace

void EventLog::Restore(const std::string& job, std::vector<v1::JobEvent> events, int64_t ceiling) {
  for (v1::JobEvent& event : events) Append(job, std::move(event));
  Events& e = jobs_[job];
  e.next = std::max(e.next, ceiling + 1);
}

int64_t EventLog::NextSequence(const std::string& job) const {
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? 1 : it->second.next;
}

void EventLog::Append(const std::string& job, v1::JobEvent event) {
  Events& e = jobs_[job];
  e.next = event.sequence() + 1;
  e.kept.push_back(std::move(event));
  while (e.kept.size() > max_events_) e.kept.pop_front();
}

std::vector<v1::JobEvent> EventLog::ReadAfter(const std::string& job, int64_t after,
                                              size_t limit) const {
  std::vector<v1::JobEvent> out;
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return out;
  const auto& kept = it->second.kept;
  auto next = std::upper_bound(
      kept.begin(), kept.end(), after,
      [](int64_t value, const v1::JobEvent& event) { return value < event.sequence(); });
  int64_t last = after;
  for (; next != kept.end() && out.size() < limit; ++next) {
    // Numbers also jump where a restart forgot events.
    if (next->sequence() > last + 1) out.push_back(GapBefore(*next));
    out.push_back(*next);
    last = next->sequence();
  }
  return out;
}

int64_t EventLog::FirstKept(const std::string& job) const {
  const auto it = jobs_.find(job);
  return it == jobs_.end() || it->second.kept.empty() ? 0 : it->second.kept.front().sequence();
}

}  // namespace weft::state
