#include "fabric/comm/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "fabric/comm/communicator.h"

namespace weft::comm {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(20);

StatusOr<sockaddr_in> Parse(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) ||
      port < 0 || port > 65535 ||
      inet_pton(AF_INET, std::string(endpoint.substr(0, colon)).c_str(), &address.sin_addr) != 1) {
    return InvalidArgument("endpoint '", endpoint, "' is not of the form 127.0.0.1:4000");
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

Status Await(int fd, int16_t events, Deadline deadline) {
  pollfd wait{fd, events, 0};
  while (true) {
    const int ready = poll(&wait, 1, PollTimeout(deadline, absl::Seconds(1)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll", errno);
    if (deadline.Expired()) return DeadlineExceeded("the deadline passed");
  }
}

// One attempt. `*error` is what went wrong with the connection itself, or 0.
StatusOr<Socket> ConnectOnce(const sockaddr_in& address, Deadline deadline, int* error) {
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.valid()) return ErrnoStatus("cannot make a socket", errno);
  *error = 0;
  if (connect(made.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return made;
  }
  if (errno != EINPROGRESS) {
    *error = errno;
    return made;
  }
  RETURN_IF_ERROR(Await(made.fd(), POLLOUT, deadline));
  socklen_t size = sizeof(*error);
  getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, error, &size);
  return made;
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

int PollTimeout(Deadline deadline, absl::Duration most) {
  const absl::Duration wait = std::min(deadline.Remaining(), most);
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
}

StatusOr<Socket> Connect(absl::string_view endpoint, Deadline deadline) {
  ASSIGN_OR_RETURN(const sockaddr_in address, Parse(endpoint));
  while (true) {
    int error = 0;
    ASSIGN_OR_RETURN(Socket made, ConnectOnce(address, deadline, &error));
    if (error == 0) {
      SetNoDelay(made.fd());
      return made;
    }
    const Status failed = ErrnoStatus("connect", error);
    if (error != ECONNREFUSED && error != EAGAIN && error != ETIMEDOUT) return failed;
    if (deadline.Expired()) return DeadlineExceeded("the deadline passed: ", failed.message());
    poll(nullptr, 0, PollTimeout(deadline, kRetry));
  }
}

Socket Accept(int listener) {
  Socket made(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (made.valid()) SetNoDelay(made.fd());
  return made;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status ReadAll(int fd, void* to, size_t bytes, Deadline deadline) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return Unavailable("the connection closed");
    if (got < 0 && !WouldBlock()) return ErrnoStatus("recv", errno);
    if (got < 0) {
      RETURN_IF_ERROR(Await(fd, POLLIN, deadline));
      continue;
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

Status WriteAll(int fd, const void* from, size_t bytes, Deadline deadline) {
  const char* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && (errno == EPIPE || errno == ECONNRESET)) {
      return Unavailable("the connection closed");
    }
    if (put < 0 && !WouldBlock()) return ErrnoStatus("send", errno);
    if (put < 0) {
      RETURN_IF_ERROR(Await(fd, POLLOUT, deadline));
      continue;
    }
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const std::string& host) {
  ASSIGN_OR_RETURN(sockaddr_in address, Parse(absl::StrCat(host, ":0")));
  Socket made(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.valid()) return ErrnoStatus("cannot make a socket", errno);
  socklen_t size = sizeof(address);
  sockaddr* name = reinterpret_cast<sockaddr*>(&address);
  if (bind(made.fd(), name, size) != 0 || listen(made.fd(), SOMAXCONN) != 0 ||
      getsockname(made.fd(), name, &size) != 0) {
    return ErrnoStatus(absl::StrCat("cannot listen on ", host), errno);
  }
  std::string endpoint = absl::StrCat(host, ":", ntohs(address.sin_port));
  return std::unique_ptr<TcpListener>(new TcpListener(made.release(), std::move(endpoint)));
}

TcpListener::~TcpListener() { close(fd_); }

}  // namespace weft::comm
