#include "fabric/comm/channel_communicator.h"

#include <cstring>
#include <utility>

#include "fabric/base/error_detail.h"
#include "fabric/comm/algorithms.h"
#include "fabric/comm/call_check.h"

namespace weft::comm {
namespace {

// Ring reductions this small (bytes) go the ordered way with one lane a rank: two hops, or one,
// instead of 2 * (size - 1).
constexpr int64_t kSmallRing = 32 << 10;

class ChannelCommunicator final : public Communicator {
 public:
  explicit ChannelCommunicator(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}

  int32_t rank() const override { return channel_->rank(); }
  int32_t size() const override { return channel_->size(); }

  Status Launch(const CollectiveCall& call, StreamTag, Deadline deadline) override {
    RETURN_IF_ERROR(channel_->Begin());
    Status status = CheckCall(call, rank(), size());
    if (status.ok()) {
      Build(call);
      status = schedule_.Run(*channel_, deadline);
      if (!status.ok()) status = Explain(status, call);
    }
    if (status.ok()) return status;
    // The streams may be cut inside a message now, so no later call can succeed. An earlier cause
    // wins.
    channel_->Abort(status);
    return status;
  }

  void Abort(const Status& cause) override { channel_->Abort(cause); }

 private:
  Status Explain(const Status& status, const CollectiveCall& call) const {
    ErrorDetail detail;
    if (const auto known = GetErrorDetail(status); known.has_value()) detail = *known;
    detail.origin = "comm";
    if (detail.action == ErrorAction::kUnspecified) detail.action = ErrorAction::kRebuildComm;
    detail.op = ToString(call);
    return WithDetail(Annotate(status, absl::StrCat(ToString(call), " on rank ", rank())), detail);
  }

  void Build(const CollectiveCall& call) {
    schedule_.Clear(size(), call.dtype);
    const Task task{call, rank(), size(), schedule_, scratch_};
    if (!kKinds[static_cast<size_t>(call.kind)].reduces) return BuildMove(task);
    const int64_t bytes = call.count * task.element();
    if (call.order == Order::kOrdered || size() == 1) return BuildOrdered(task);
    if (bytes > kSmallRing) return BuildRing(task);
    CollectiveCall one_lane_each = call;
    one_lane_each.partials = {};
    BuildOrdered(Task{one_lane_each, rank(), size(), schedule_, scratch_});
  }

  std::unique_ptr<Channel> channel_;
  Schedule schedule_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Communicator> MakeChannelCommunicator(std::unique_ptr<Channel> channel) {
  return std::make_unique<ChannelCommunicator>(std::move(channel));
}

}  // namespace weft::comm
