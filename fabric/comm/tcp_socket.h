// Sockets as values: an owned descriptor, and whole messages with a deadline on non-blocking
// sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"

namespace weft::comm {

// Closes its descriptor. Moves leave -1 behind.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Connects to "address:port" (numeric IPv4), trying again while nothing listens there, until the
// deadline. The socket is non-blocking.
StatusOr<Socket> Connect(absl::string_view endpoint, Deadline deadline);

// A waiting connection of a listening socket, made non-blocking; not valid where there is none.
Socket Accept(int listener);

void SetNoDelay(int fd);

// Unavailable when the other end closes, DeadlineExceeded in time.
Status ReadAll(int fd, void* to, size_t bytes, Deadline deadline);
Status WriteAll(int fd, const void* from, size_t bytes, Deadline deadline);

// For poll: milliseconds until the deadline, rounded up, at most `most`.
int PollTimeout(Deadline deadline, absl::Duration most);

}  // namespace weft::comm
