#include "fabric/comm/tcp_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fabric/comm/channel.h"

namespace weft::comm {
namespace {

constexpr int64_t kHeader = sizeof(FrameHeader);
// Two whole frames, so that one receive often brings the next while this one is used.
constexpr int64_t kBuffer = 2 * (kHeader + kMaxPayload);

bool Later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TcpStream::TcpStream(Socket socket, int32_t peer, uint64_t tag)
    : socket_(std::move(socket)), peer_(peer), tag_(tag), buffer_(kBuffer) {}

StatusOr<int64_t> TcpStream::Put(const std::byte* data, int64_t bytes) {
  if (!sending_) {
    out_ = FrameHeader();
    out_.length = static_cast<uint32_t>(std::min(bytes, kMaxPayload));
    out_.tag = tag_;
    out_.sequence = next_out_++;
    out_.payload_crc = Crc32c(0, data, out_.length);
    out_.header_crc = HeaderCrc(out_);
    sent_ = 0;
    sending_ = true;
  }
  const int64_t header_gone = std::min(sent_, kHeader);
  const int64_t payload_left = kHeader + out_.length - std::max(sent_, kHeader);
  iovec parts[2] = {
      {reinterpret_cast<char*>(&out_) + header_gone, static_cast<size_t>(kHeader - header_gone)},
      {const_cast<std::byte*>(data), static_cast<size_t>(payload_left)}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t gone = sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (gone < 0) {
    if (Later(errno)) return 0;
    return PeerGone(peer_, ErrnoStatus("its connection broke", errno).message());
  }
  sent_ += gone;
  if (sent_ == kHeader + out_.length) sending_ = false;
  return std::max<int64_t>(0, gone - (kHeader - header_gone));
}

StatusOr<bool> TcpStream::OpenFrame() {
  if (end_ - begin_ < sizeof(FrameHeader)) return false;
  FrameHeader header;
  std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
  RETURN_IF_ERROR(CheckHeader(header, tag_, next_in_, peer_));
  if (end_ - begin_ < sizeof(header) + header.length) return false;
  const std::byte* payload = buffer_.data() + begin_ + sizeof(header);
  if (Crc32c(0, payload, header.length) != header.payload_crc) {
    return DataLoss("frame ", next_in_, " from rank ", peer_, " of ", header.length,
                    " bytes fails its checksum");
  }
  ++next_in_;
  begin_ += sizeof(header);
  seen_ = begin_;
  frame_end_ = begin_ + header.length;
  return true;
}

StatusOr<bool> TcpStream::Receive() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0 && buffer_.size() - begin_ < sizeof(FrameHeader) + kMaxPayload) {
    // The frame that begins here might not fit behind what was used.
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const ssize_t got =
      recv(socket_.fd(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
  if (got > 0) {
    end_ += static_cast<size_t>(got);
    return true;
  }
  if (got == 0) return PeerGone(peer_, "it closed its connection");
  if (Later(errno)) return false;
  return PeerGone(peer_, ErrnoStatus("its connection broke", errno).message());
}

StatusOr<absl::Span<const std::byte>> TcpStream::Look() {
  while (seen_ == frame_end_) {
    if (frame_end_ > 0) begin_ = frame_end_;
    seen_ = frame_end_ = 0;
    ASSIGN_OR_RETURN(const bool opened, OpenFrame());
    if (opened) break;
    ASSIGN_OR_RETURN(const bool received, Receive());
    if (!received) return absl::Span<const std::byte>();
  }
  return absl::Span<const std::byte>(buffer_.data() + seen_, frame_end_ - seen_);
}

}  // namespace weft::comm
