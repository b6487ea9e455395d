#include "server/queue/fifo.h"

#include "absl/strings/str_cat.h"

namespace weft::queue {
namespace {

std::string WhyNotYet(const WaitingJob& job, const Slots& slots) {
  const char* plural = job.min_ranks == 1 ? "" : "s";
  if (slots.total == 0) {
    return absl::StrCat("waits for ", job.min_ranks, " slot", plural, "; no worker is here");
  }
  if (job.min_ranks > slots.total) {
    return absl::StrCat("waits for ", job.min_ranks, " slots; all workers together have ",
                        slots.total);
  }
  return absl::StrCat("waits for ", job.min_ranks, " free slot", plural, "; ", slots.free, " of ",
                      slots.total, " are free");
}

}  // namespace

Turn NextJob(const std::vector<WaitingJob>& waiting, const Slots& slots) {
  Turn turn;
  const std::string* blocker = nullptr;
  for (size_t i = 0; i < waiting.size(); ++i) {
    const WaitingJob& job = waiting[i];
    std::string& reason = turn.reasons.emplace_back();
    if (!job.held.empty()) {
      reason = job.held;
    } else if (blocker != nullptr) {
      reason = absl::StrCat("waits behind job ", *blocker);
    } else if (job.min_ranks <= slots.free) {
      turn.next = i;
      blocker = &job.id;
    } else {
      reason = WhyNotYet(job, slots);
      blocker = &job.id;
    }
  }
  return turn;
}

}  // namespace weft::queue
