#include "fabric/comm/schedule.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "fabric/base/check.h"
#include "fabric/comm/add.h"

namespace weft::comm {
namespace {

// Moved at a time: large enough to hide what a visit costs, small enough that a piece stays in the
// L2 cache between the receive and the send that follows it, and that the peer starts early.
constexpr int64_t kPiece = 64 << 10;

}  // namespace

void Schedule::Clear(int32_t ranks, DType dtype) {
  dtype_ = dtype;
  steps_.clear();
  sends_.resize(ranks);
  recvs_.resize(ranks);
  for (auto* queues : {&sends_, &recvs_}) {
    for (Queue& queue : *queues) {
      queue.steps.clear();
      queue.at = 0;
    }
  }
  reduction_ = nullptr;
  open_ = 0;
}

int32_t Schedule::Push(const Step& step) {
  if (step.bytes == 0) return kNone;
  const int32_t index = static_cast<int32_t>(steps_.size());
  steps_.push_back(step);
  if (step.what == What::kSend) {
    sends_[step.peer].steps.push_back(index);
  } else if (step.what != What::kReduce) {
    recvs_[step.peer].steps.push_back(index);
  }
  ++open_;
  return index;
}

int32_t Schedule::Send(int32_t peer, const void* from, int64_t bytes, int32_t after) {
  Step step;
  step.what = What::kSend;
  step.peer = peer;
  step.from = static_cast<const std::byte*>(from);
  step.bytes = bytes;
  step.after = after;
  return Push(step);
}

int32_t Schedule::SendFor(int32_t feeds, int32_t peer, const void* from, int64_t bytes) {
  const int32_t index = Send(peer, from, bytes);
  if (index == kNone) return index;
  steps_[index].feeds = feeds;
  ++steps_[feeds].waiting;
  return index;
}

int32_t Schedule::Recv(int32_t peer, void* to, int64_t bytes) {
  return RecvFor(kNone, peer, to, bytes, kNone);
}

int32_t Schedule::RecvAdd(int32_t peer, const void* addend, void* to, int64_t bytes) {
  Step step;
  step.what = What::kRecvAdd;
  step.peer = peer;
  step.from = static_cast<const std::byte*>(addend);
  step.to = static_cast<std::byte*>(to);
  step.bytes = bytes;
  return Push(step);
}

int32_t Schedule::Reduce(int32_t block, int64_t bytes) {
  Step step;
  step.what = What::kReduce;
  step.block = block;
  step.bytes = bytes;
  return Push(step);
}

int32_t Schedule::RecvFor(int32_t feeds, int32_t peer, void* to, int64_t bytes, int32_t after) {
  Step step;
  step.what = What::kRecv;
  step.peer = peer;
  step.to = static_cast<std::byte*>(to);
  step.bytes = bytes;
  step.after = after;
  step.feeds = feeds;
  if (bytes > 0 && feeds != kNone) ++steps_[feeds].waiting;
  return Push(step);
}

int64_t Schedule::Ready(const Step& send) const {
  return send.after == kNone ? send.bytes : std::min(send.bytes, steps_[send.after].done);
}

bool Schedule::Gated(const Step& recv) const {
  return recv.after != kNone && !steps_[recv.after].complete();
}

void Schedule::RunReduce(Step& step) {
  reduction_(step.block);
  step.done = step.bytes;
  --open_;
}

void Schedule::Finish(const Step& step) {
  --open_;
  if (step.feeds == kNone) return;
  Step& reduce = steps_[step.feeds];
  if (--reduce.waiting == 0) RunReduce(reduce);
}

// Moves what has come into `step` and returns how much that was.
StatusOr<int64_t> Schedule::Take(Channel& channel, Step& step) {
  ASSIGN_OR_RETURN(const absl::Span<const std::byte> come, channel.Look(step.peer));
  if (come.empty()) return 0;
  int64_t bytes =
      std::min({static_cast<int64_t>(come.size()), step.bytes - step.done, int64_t{kPiece}});
  if (step.what == What::kRecv) {
    std::memcpy(step.to + step.done, come.data(), bytes);
  } else {
    bytes -= bytes % static_cast<int64_t>(SizeOf(dtype_));
    if (bytes == 0) {
      return FailedPrecondition("rank ", step.peer,
                                " sent a part of an element: the ranks make different calls");
    }
    Add(dtype_, step.to + step.done, step.from + step.done, come.data(), bytes);
  }
  channel.Drop(step.peer, bytes);
  step.done += bytes;
  return bytes;
}

StatusOr<bool> Schedule::AdvanceRecv(Channel& channel, int32_t peer) {
  Queue& queue = recvs_[peer];
  int64_t moved = 0;
  while (!queue.empty() && moved < kPiece) {
    Step& step = steps_[queue.front()];
    if (Gated(step)) break;
    ASSIGN_OR_RETURN(const int64_t bytes, Take(channel, step));
    moved += bytes;
    if (!step.complete()) {
      if (bytes == 0) break;
      continue;
    }
    channel.EndDrop(peer);
    ++queue.at;
    Finish(step);
  }
  return moved > 0;
}

StatusOr<bool> Schedule::AdvanceSend(Channel& channel, int32_t peer) {
  Queue& queue = sends_[peer];
  int64_t moved = 0;
  while (!queue.empty() && moved < kPiece) {
    Step& step = steps_[queue.front()];
    const int64_t ready = std::min(Ready(step) - step.done, kPiece);
    if (ready <= 0) break;
    ASSIGN_OR_RETURN(const int64_t bytes, channel.Put(peer, step.from + step.done, ready));
    step.done += bytes;
    moved += bytes;
    if (!step.complete()) {
      if (bytes == 0) break;
      continue;
    }
    channel.EndPut(peer);
    ++queue.at;
    Finish(step);
  }
  return moved > 0;
}

void Schedule::CollectWants() {
  wants_.clear();
  for (size_t peer = 0; peer < sends_.size(); ++peer) {
    Want want;
    want.peer = static_cast<int32_t>(peer);
    if (!sends_[peer].empty()) {
      const Step& step = steps_[sends_[peer].front()];
      want.put = Ready(step) > step.done;
    }
    if (!recvs_[peer].empty()) want.look = !Gated(steps_[recvs_[peer].front()]);
    if (want.put || want.look) wants_.push_back(want);
  }
  // Steps depend on earlier ones only, so the first open one can always go on.
  WEFT_CHECK(!wants_.empty());
}

Status Schedule::GaveUp() const {
  std::string peers;
  for (const Want& want : wants_) {
    absl::StrAppend(&peers, peers.empty() ? "" : ", ", want.peer);
  }
  return DeadlineExceeded("the deadline passed while waiting for rank ", peers);
}

Status Schedule::Run(Channel& channel, Deadline deadline) {
  for (Step& step : steps_) {
    if (step.what == What::kReduce && step.waiting == 0) RunReduce(step);
  }
  const int32_t ranks = static_cast<int32_t>(sends_.size());
  while (open_ > 0) {
    RETURN_IF_ERROR(channel.cause());
    bool moved = false;
    // From the next rank on, so that ranks do not all turn to the same one first.
    for (int32_t i = 1; i < ranks; ++i) {
      const int32_t peer = (channel.rank() + i) % ranks;
      ASSIGN_OR_RETURN(const bool received, AdvanceRecv(channel, peer));
      ASSIGN_OR_RETURN(const bool sent, AdvanceSend(channel, peer));
      moved |= received || sent;
    }
    const bool expired = deadline.Expired();
    if (open_ == 0 || (moved && !expired)) continue;
    CollectWants();
    if (expired) return GaveUp();
    RETURN_IF_ERROR(channel.Wait(wants_, deadline));
  }
  return absl::OkStatus();
}

}  // namespace weft::comm
