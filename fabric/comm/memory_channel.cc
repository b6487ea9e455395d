#include "fabric/comm/memory_channel.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/comm/communicator.h"
#include "fabric/comm/futex.h"
#include "fabric/comm/memory_layout.h"

namespace weft::comm {
namespace {

// Looks before a rank sleeps: a few microseconds, and none where ranks outnumber processors.
constexpr int kSpins = 300;
// A sleep this long without news asks whether the peers still live.
constexpr absl::Duration kNap = absl::Milliseconds(20);

int64_t RoundUp(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class MemoryChannel final : public Channel {
 public:
  MemoryChannel(const MemoryGroup& group, std::unique_ptr<Liveness> liveness)
      : mapping_(group.mapping),
        layout_(mapping_->base(), group.size),
        rank_(group.rank),
        size_(group.size),
        ring_bytes_(RingBytes(group.size)),
        spins_(static_cast<unsigned>(group.size) <= std::thread::hardware_concurrency() ? kSpins
                                                                                        : 0),
        liveness_(std::move(liveness)),
        heads_(group.size),
        tails_(group.size) {}

  ~MemoryChannel() override {
    if (!entered_) return;
    layout_.member(rank_).presence = static_cast<uint32_t>(Presence::kLeft);
    WakeAll();
  }

  Status Enter(const std::string& fingerprint);
  Status AwaitAll(const std::string& fingerprint, Deadline deadline);

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  StatusOr<int64_t> Put(int32_t peer, const std::byte* data, int64_t bytes) override;
  void EndPut(int32_t peer) override;
  StatusOr<absl::Span<const std::byte>> Look(int32_t peer) override;
  void Drop(int32_t peer, int64_t bytes) override;
  void EndDrop(int32_t peer) override;
  Status Wait(absl::Span<const Want> wants, Deadline deadline) override;
  Status cause() override;
  void Abort(const Status& cause) override;

 private:
  bool Possible(const Want& want) const;
  bool AnyPossible(absl::Span<const Want> wants) const {
    return std::any_of(wants.begin(), wants.end(),
                       [this](const Want& want) { return Possible(want); });
  }
  Status CheckPeers(absl::Span<const Want> wants);
  Status CheckPeer(int32_t peer);
  bool aborted() const {
    return layout_.header().abort_state.load() != static_cast<uint32_t>(AbortState::kNone);
  }
  void Wake(int32_t rank);
  void WakeAll() {
    for (int32_t rank = 0; rank < size_; ++rank) Wake(rank);
  }

  std::shared_ptr<Mapping> mapping_;
  Layout layout_;
  int32_t rank_;
  int32_t size_;
  int64_t ring_bytes_;
  int spins_;
  std::unique_ptr<Liveness> liveness_;
  bool entered_ = false;
  // This rank's own positions, by peer: head of the stream to it, tail of the stream from it.
  std::vector<int64_t> heads_, tails_;
};

Status MemoryChannel::Enter(const std::string& fingerprint) {
  Member& self = layout_.member(rank_);
  uint32_t absent = static_cast<uint32_t>(Presence::kAbsent);
  if (!self.presence.compare_exchange_strong(absent, static_cast<uint32_t>(Presence::kEntering))) {
    return FailedPrecondition("rank ", rank_, " has been taken in this shared memory before: ",
                              "every generation of a group needs a new descriptor");
  }
  entered_ = true;
  std::memcpy(self.fingerprint, fingerprint.data(), sizeof(self.fingerprint));
  self.process = static_cast<uint32_t>(getpid());
  self.presence = static_cast<uint32_t>(Presence::kHere);
  WakeAll();
  return absl::OkStatus();
}

Status MemoryChannel::AwaitAll(const std::string& fingerprint, Deadline deadline) {
  Member& self = layout_.member(rank_);
  for (int32_t peer = 0; peer < size_; ++peer) {
    Member& member = layout_.member(peer);
    while (member.presence.load() < static_cast<uint32_t>(Presence::kHere)) {
      RETURN_IF_ERROR(cause());
      if (deadline.Expired()) {
        return DeadlineExceeded("rank ", peer, " did not join the shared memory group in time");
      }
      self.asleep = 1;
      if (member.presence.load() < static_cast<uint32_t>(Presence::kHere) && !aborted()) {
        FutexWait(self.asleep, 1, std::min(kNap, deadline.Remaining()));
      }
      self.asleep = 0;
    }
    if (std::memcmp(member.fingerprint, fingerprint.data(), sizeof(member.fingerprint)) != 0) {
      return FailedPrecondition("rank ", peer,
                                " joined with another secret or group size than rank ", rank_,
                                ": it belongs to another generation");
    }
    // Asked early, so that the answer is about this process and not a later one with its id.
    const int32_t process = static_cast<int32_t>(member.process.load());
    if (peer != rank_ && liveness_ != nullptr) liveness_->Ended(peer, process);
  }
  return absl::OkStatus();
}

void MemoryChannel::Wake(int32_t rank) {
  std::atomic<uint32_t>& asleep = layout_.member(rank).asleep;
  // Sequentially consistent with the sleeper's store of 1 and its last look: one of the two sees
  // the other.
  if (asleep.load() == 0) return;
  asleep.store(0);
  FutexWakeAll(asleep);
}

StatusOr<int64_t> MemoryChannel::Put(int32_t peer, const std::byte* data, int64_t bytes) {
  RingEnds& ends = layout_.ends(rank_, peer);
  int64_t& head = heads_[peer];
  const int64_t room = ring_bytes_ - (head - ends.tail.load(std::memory_order_acquire));
  int64_t taken = std::min(room, bytes);
  // Cut at lines only, and so never inside an element.
  if (taken < bytes) taken &= ~(kLine - 1);
  if (taken <= 0) return 0;
  std::byte* ring = layout_.bytes(rank_, peer);
  const int64_t at = head & (ring_bytes_ - 1);
  const int64_t first = std::min(taken, ring_bytes_ - at);
  std::memcpy(ring + at, data, first);
  if (taken > first) std::memcpy(ring, data + first, taken - first);
  head += taken;
  ends.head.store(head);
  Wake(peer);
  return taken;
}

// What is skipped is neither written nor read, so it needs no room.
void MemoryChannel::EndPut(int32_t peer) { heads_[peer] = RoundUp(heads_[peer]); }

StatusOr<absl::Span<const std::byte>> MemoryChannel::Look(int32_t peer) {
  const int64_t head = layout_.ends(peer, rank_).head.load(std::memory_order_acquire);
  const int64_t tail = tails_[peer];
  const int64_t at = tail & (ring_bytes_ - 1);
  // Less than nothing where this side has skipped the end of a message and the next one has not
  // come.
  const int64_t bytes = std::max<int64_t>(0, std::min(head - tail, ring_bytes_ - at));
  return absl::Span<const std::byte>(layout_.bytes(peer, rank_) + at, bytes);
}

void MemoryChannel::Drop(int32_t peer, int64_t bytes) {
  tails_[peer] += bytes;
  layout_.ends(peer, rank_).tail.store(tails_[peer]);
  Wake(peer);
}

void MemoryChannel::EndDrop(int32_t peer) {
  tails_[peer] = RoundUp(tails_[peer]);
  layout_.ends(peer, rank_).tail.store(tails_[peer]);
}

bool MemoryChannel::Possible(const Want& want) const {
  if (want.look && layout_.ends(want.peer, rank_).head.load() > tails_[want.peer]) return true;
  if (!want.put) return false;
  const int64_t used = heads_[want.peer] - layout_.ends(rank_, want.peer).tail.load();
  return ring_bytes_ - used >= kLine;
}

Status MemoryChannel::CheckPeer(int32_t peer) {
  Member& member = layout_.member(peer);
  if (member.presence.load() == static_cast<uint32_t>(Presence::kLeft)) {
    return PeerGone(peer, "it left the group");
  }
  return absl::OkStatus();
}

// Asked after a look that found nothing. What a peer put before it went still counts, so look
// again.
Status MemoryChannel::CheckPeers(absl::Span<const Want> wants) {
  for (const Want& want : wants) {
    const Status gone = CheckPeer(want.peer);
    if (!gone.ok() && !aborted() && !Possible(want)) return gone;
  }
  return cause();
}

Status MemoryChannel::Wait(absl::Span<const Want> wants, Deadline deadline) {
  for (int i = 0; i < spins_; ++i) {
    if (AnyPossible(wants)) return absl::OkStatus();
    _mm_pause();
  }
  std::atomic<uint32_t>& asleep = layout_.member(rank_).asleep;
  asleep.store(1);
  if (AnyPossible(wants)) {
    asleep.store(0);
    return absl::OkStatus();
  }
  Status status = CheckPeers(wants);
  if (status.ok()) {
    FutexWait(asleep, 1, std::min(kNap, deadline.Remaining()));
  }
  // Still 1: nobody woke us.
  const bool no_news = asleep.exchange(0) == 1;
  if (!status.ok() || !no_news) return status;
  for (const Want& want : wants) {
    const int32_t process = static_cast<int32_t>(layout_.member(want.peer).process.load());
    if (liveness_ != nullptr && liveness_->Ended(want.peer, process) && !aborted() &&
        !Possible(want)) {
      return PeerGone(want.peer, absl::StrCat("its process ", process, " ended"));
    }
  }
  return absl::OkStatus();
}

Status MemoryChannel::cause() {
  if (!aborted()) return absl::OkStatus();
  GroupHeader& header = layout_.header();
  // The writer needs an instant; one that died in it leaves no text.
  const Deadline patience = Deadline::After(absl::Milliseconds(5));
  while (header.abort_state.load() != static_cast<uint32_t>(AbortState::kSet)) {
    if (patience.Expired()) return Aborted("the group was aborted by a rank that then ended");
    std::this_thread::yield();
  }
  return FromRecord(header.abort, rank_);
}

void MemoryChannel::Abort(const Status& cause) {
  GroupHeader& header = layout_.header();
  uint32_t none = static_cast<uint32_t>(AbortState::kNone);
  if (!header.abort_state.compare_exchange_strong(none,
                                                  static_cast<uint32_t>(AbortState::kWriting))) {
    return;
  }
  header.abort = ToRecord(cause, rank_);
  header.abort_state = static_cast<uint32_t>(AbortState::kSet);
  WakeAll();
}

StatusOr<std::unique_ptr<MemoryChannel>> Enter(const MemoryGroup& group,
                                               std::unique_ptr<Liveness> liveness) {
  auto channel = std::make_unique<MemoryChannel>(group, std::move(liveness));
  RETURN_IF_ERROR(channel->Enter(group.fingerprint));
  return channel;
}

}  // namespace

StatusOr<std::shared_ptr<Mapping>> Mapping::Open(int fd, int64_t bytes) {
  const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    return ErrnoStatus(absl::StrCat("cannot map ", bytes, " bytes of group memory"), errno);
  }
  return std::make_shared<Mapping>(base, bytes);
}

Mapping::~Mapping() { munmap(base_, bytes_); }

StatusOr<std::unique_ptr<Channel>> EnterMemoryGroup(const MemoryGroup& group,
                                                    std::unique_ptr<Liveness> liveness) {
  ASSIGN_OR_RETURN(std::unique_ptr<MemoryChannel> channel, Enter(group, std::move(liveness)));
  return std::unique_ptr<Channel>(std::move(channel));
}

StatusOr<std::unique_ptr<Channel>> JoinMemoryGroup(const MemoryGroup& group,
                                                   std::unique_ptr<Liveness> liveness,
                                                   Deadline deadline) {
  ASSIGN_OR_RETURN(std::unique_ptr<MemoryChannel> channel, Enter(group, std::move(liveness)));
  const Status all = channel->AwaitAll(group.fingerprint, deadline);
  if (!all.ok()) {
    channel->Abort(all);
    return all;
  }
  return std::unique_ptr<Channel>(std::move(channel));
}

int64_t SharedMemoryBytes(int32_t size) { return LayoutBytes(size); }

}  // namespace weft::comm
