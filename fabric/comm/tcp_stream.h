// TcpStream: the framed byte streams to and from one peer over a non-blocking socket. One thread at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "fabric/comm/tcp_frame.h"
#include "fabric/comm/tcp_socket.h"

namespace weft::comm {

class TcpStream {
 public:
  TcpStream() = default;
  TcpStream(Socket socket, int32_t peer, uint64_t tag);

  int fd() const { return socket_.fd(); }

  // As Channel::Put. Unavailable once the connection is closed.
  StatusOr<int64_t> Put(const std::byte* data, int64_t bytes);
  // As Channel::Look: the rest of a frame whose checksum is right. DataLoss for a damaged one.
  StatusOr<absl::Span<const std::byte>> Look();
  void Drop(int64_t bytes) { seen_ += bytes; }

 private:
  StatusOr<bool> OpenFrame();
  // False: nothing has come.
  StatusOr<bool> Receive();

  Socket socket_;
  int32_t peer_ = -1;
  uint64_t tag_ = 0;

  // The frame being sent: of its header and payload, `sent_` bytes are gone.
  FrameHeader out_;
  int64_t sent_ = 0;
  bool sending_ = false;
  uint64_t next_out_ = 0;

  // Received bytes are at [begin_, end_) of the buffer. While a frame is open its payload is
  // [begin_, frame_end_) and [begin_, seen_) of that has been used.
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;
  size_t seen_ = 0, frame_end_ = 0;
  uint64_t next_in_ = 0;
};

}  // namespace weft::comm
