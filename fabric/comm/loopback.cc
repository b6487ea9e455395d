#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "fabric/comm/channel.h"
#include "fabric/comm/channel_communicator.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {
namespace {

// There is no peer, so nothing is ever sent or awaited.
class NoChannel final : public Channel {
 public:
  int32_t rank() const override { return 0; }
  int32_t size() const override { return 1; }
  StatusOr<int64_t> Put(int32_t, const std::byte*, int64_t) override { return NoPeer(); }
  void EndPut(int32_t) override {}
  StatusOr<absl::Span<const std::byte>> Look(int32_t) override { return NoPeer(); }
  void Drop(int32_t, int64_t) override {}
  void EndDrop(int32_t) override {}
  Status Wait(absl::Span<const Want>, Deadline) override { return NoPeer(); }
  Status cause() override {
    absl::MutexLock lock(&mutex_);
    return cause_;
  }
  void Abort(const Status& cause) override {
    absl::MutexLock lock(&mutex_);
    if (cause_.ok()) cause_ = cause.ok() ? Aborted("aborted without a cause") : cause;
  }

 private:
  static Status NoPeer() { return Internal("a group of one has no peer"); }

  absl::Mutex mutex_;
  Status cause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Communicator> MakeLoopback() {
  return MakeChannelCommunicator(std::make_unique<NoChannel>());
}

}  // namespace weft::comm
