// Frames of the TCP transport: a header, then the payload. Little-endian.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "fabric/base/hash.h"
#include "fabric/base/status.h"

namespace weft::comm {

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x46524d57;  // "WMRF"
  uint32_t magic = kMagic;
  uint32_t length = 0;    // bytes of payload
  uint64_t tag = 0;       // agreed in the handshake: frames of another group or generation differ
  uint64_t sequence = 0;  // counts the frames of a direction
  uint32_t payload_crc = 0;  // CRC32C
  uint32_t header_crc = 0;   // CRC32C of the fields above
};
static_assert(sizeof(FrameHeader) == 32);

inline constexpr int64_t kMaxPayload = 128 << 10;

inline uint32_t HeaderCrc(const FrameHeader& header) {
  return Crc32c(0, &header, sizeof(header) - sizeof(header.header_crc));
}

// DataLoss naming the rank when `header` is damaged or not the one that must come next.
inline Status CheckHeader(const FrameHeader& header, uint64_t tag, uint64_t sequence,
                          int32_t peer) {
  absl::string_view wrong;
  if (header.header_crc != HeaderCrc(header)) {
    wrong = "its header fails the checksum";
  } else if (header.magic != FrameHeader::kMagic || header.tag != tag) {
    wrong = "it is not of this group and generation";
  } else if (header.sequence != sequence) {
    wrong = "it is out of sequence";
  } else if (header.length == 0 || header.length > kMaxPayload) {
    wrong = "its length is out of range";
  } else {
    return absl::OkStatus();
  }
  return DataLoss("frame ", sequence, " from rank ", peer, " is refused: ", wrong);
}

}  // namespace weft::comm
