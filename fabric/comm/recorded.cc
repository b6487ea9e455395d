#include "fabric/comm/recorded.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "fabric/base/check.h"

namespace weft::comm {
namespace {

class Recorded final : public Communicator {
 public:
  Recorded(std::unique_ptr<Communicator> inner, std::shared_ptr<FlightRecord> record)
      : inner_(std::move(inner)), record_(std::move(record)) {}

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  void Abort(const Status& cause) override { inner_->Abort(cause); }
  Status Health() override { return inner_->Health(); }
  Status Reserve(const CollectiveCall& call) override { return inner_->Reserve(call); }

  Status Launch(const CollectiveCall& call, StreamTag stream, Deadline deadline) override {
    const uint64_t sequence = record_->Begin(call);
    const Status status = inner_->Launch(call, stream, deadline);
    record_->End(sequence, status);
    return status;
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<FlightRecord> record_;
};

}  // namespace

FlightRecord::FlightRecord(size_t capacity, Clock* clock) : capacity_(capacity), clock_(clock) {
  WEFT_CHECK(capacity > 0);
}

uint64_t FlightRecord::Begin(const CollectiveCall& call) {
  Slot slot;
  slot.entry.call = ToString(call);
  slot.entry.started = clock_->Now();
  slot.began = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  slot.entry.sequence = next_++;
  slots_.push_back(std::move(slot));
  if (slots_.size() > capacity_) slots_.pop_front();
  return slots_.back().entry.sequence;
}

void FlightRecord::End(uint64_t sequence, const Status& status) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  // Sequences are consecutive; the slot may be gone when several ranks share a record.
  const uint64_t oldest = next_ - slots_.size();
  if (sequence < oldest || sequence >= next_) return;
  Slot& slot = slots_[sequence - oldest];
  slot.entry.running = false;
  slot.entry.took = now - slot.began;
  slot.entry.status = status;
}

std::vector<FlightRecord::Entry> FlightRecord::Entries() const {
  const absl::Duration now = clock_->Monotonic();
  std::vector<Entry> entries;
  absl::MutexLock lock(&mutex_);
  for (const Slot& slot : slots_) {
    entries.push_back(slot.entry);
    if (slot.entry.running) entries.back().took = now - slot.began;
  }
  return entries;
}

std::string FlightRecord::Text() const {
  std::string text;
  for (const Entry& entry : Entries()) {
    absl::StrAppend(&text, "#", entry.sequence, " ", entry.call, " at ",
                    absl::FormatTime(absl::RFC3339_full, entry.started, absl::UTCTimeZone()),
                    entry.running ? " running for " : " took ",
                    absl::StrFormat("%.3f ms", absl::ToDoubleMilliseconds(entry.took)));
    if (!entry.running) {
      absl::StrAppend(&text, " ", entry.status.ok() ? "OK" : entry.status.ToString());
    }
    text += '\n';
  }
  return text;
}

std::unique_ptr<Communicator> MakeRecorded(std::unique_ptr<Communicator> inner,
                                           std::shared_ptr<FlightRecord> record) {
  return std::make_unique<Recorded>(std::move(inner), std::move(record));
}

}  // namespace weft::comm
