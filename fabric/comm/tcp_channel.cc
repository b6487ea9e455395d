#include "fabric/comm/tcp_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "fabric/comm/tcp_stream.h"

namespace weft::comm {
namespace {

// Bounds one poll, so that a deadline far away needs no arithmetic.
constexpr absl::Duration kLongest = absl::Seconds(10);

class TcpChannel final : public Channel {
 public:
  TcpChannel(int32_t rank, int32_t size, Socket wake)
      : rank_(rank), size_(size), wake_(std::move(wake)), streams_(size), controls_(size) {}

  void Adopt(Link link) {
    if (link.use == Use::kData) {
      streams_[link.peer] = TcpStream(std::move(link.socket), link.peer, link.tag);
    } else {
      controls_[link.peer].socket = std::move(link.socket);
    }
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  StatusOr<int64_t> Put(int32_t peer, const std::byte* data, int64_t bytes) override {
    StatusOr<int64_t> put = streams_[peer].Put(data, bytes);
    if (!put.ok()) return Blame(put.status());
    return put;
  }
  void EndPut(int32_t) override {}
  StatusOr<absl::Span<const std::byte>> Look(int32_t peer) override {
    StatusOr<absl::Span<const std::byte>> look = streams_[peer].Look();
    if (!look.ok()) return Blame(look.status());
    return look;
  }
  void Drop(int32_t peer, int64_t bytes) override { streams_[peer].Drop(bytes); }
  void EndDrop(int32_t) override {}

  Status Wait(absl::Span<const Want> wants, Deadline deadline) override;
  Status Begin() override;

  Status cause() override {
    if (!aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    return cause_;
  }
  void Abort(const Status& cause) override;

 private:
  // Read by the thread that uses the channel; written to, once, by the one that aborts.
  struct Control {
    Socket socket;
    bool closed = false;
  };

  // Adds the control connections, one for each rank in order, to those that are polled.
  void PollControls();
  void ReadControls(size_t first);
  void ReadControl(int32_t peer);
  // A peer that was told of an abort closes its connections too: what it was told is the cause.
  Status Blame(const Status& seen) {
    for (int32_t peer = 0; peer < size_; ++peer) ReadControl(peer);
    const Status told = cause();
    return told.ok() ? seen : told;
  }

  const int32_t rank_;
  const int32_t size_;
  Socket wake_;  // readable once aborted
  std::vector<TcpStream> streams_;
  std::vector<Control> controls_;
  std::vector<pollfd> polls_;

  std::atomic<bool> aborted_{false};
  absl::Mutex mutex_;
  Status cause_ ABSL_GUARDED_BY(mutex_);
};

Status TcpChannel::Wait(absl::Span<const Want> wants, Deadline deadline) {
  polls_.clear();
  polls_.push_back({wake_.fd(), POLLIN, 0});
  for (const Want& want : wants) {
    const int events = (want.look ? POLLIN : 0) | (want.put ? POLLOUT : 0);
    polls_.push_back({streams_[want.peer].fd(), static_cast<int16_t>(events), 0});
  }
  const size_t first_control = polls_.size();
  PollControls();
  const int ready = poll(polls_.data(), polls_.size(), PollTimeout(deadline, kLongest));
  if (ready < 0 && errno != EINTR) return ErrnoStatus("poll", errno);
  if (ready > 0) ReadControls(first_control);
  return cause();
}

Status TcpChannel::Begin() {
  polls_.clear();
  PollControls();
  if (poll(polls_.data(), polls_.size(), 0) > 0) ReadControls(0);
  return cause();
}

void TcpChannel::PollControls() {
  for (int32_t peer = 0; peer < size_; ++peer) {
    // A negative descriptor is left out by poll.
    const bool open = peer != rank_ && !controls_[peer].closed;
    polls_.push_back({open ? controls_[peer].socket.fd() : -1, POLLIN, 0});
  }
}

void TcpChannel::ReadControls(size_t first) {
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (polls_[first + peer].revents != 0) ReadControl(peer);
  }
}

void TcpChannel::ReadControl(int32_t peer) {
  Control& control = controls_[peer];
  if (peer == rank_ || control.closed) return;
  AbortRecord record;
  const ssize_t got = recv(control.socket.fd(), &record, sizeof(record), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  control.closed = true;  // A record is the last thing on the connection.
  if (got == sizeof(record)) {
    record.by = peer;
    Abort(FromRecord(record, rank_));
  }
}

void TcpChannel::Abort(const Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cause_.ok()) return;
    cause_ = cause.ok() ? Aborted("aborted without a cause") : cause;
    aborted_.store(true, std::memory_order_release);
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = write(wake_.fd(), &one, sizeof(one));
  const AbortRecord record = ToRecord(cause, rank_);
  for (int32_t peer = 0; peer < size_; ++peer) {
    // The connection is empty, so the record goes whole or the peer is gone.
    if (peer != rank_) {
      send(controls_[peer].socket.fd(), &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
}

}  // namespace

StatusOr<std::unique_ptr<Channel>> MakeTcpChannel(int32_t rank, int32_t size,
                                                  std::vector<Link> links) {
  Socket wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return ErrnoStatus("cannot make an event descriptor", errno);
  auto channel = std::make_unique<TcpChannel>(rank, size, std::move(wake));
  for (Link& link : links) channel->Adopt(std::move(link));
  return std::unique_ptr<Channel>(std::move(channel));
}

}  // namespace weft::comm
