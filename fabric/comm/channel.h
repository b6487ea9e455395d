// Channel: the seam between collective algorithms and transports. One rank's end of the byte
// streams, one in each direction for every pair of ranks; a stream neither loses nor reorders
// bytes.
//
// One thread uses a channel at a time; Abort and cause() are safe from any thread. No method but
// Wait blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"

namespace weft::comm {

// What keeps the caller of Wait from going on with one peer.
struct Want {
  int32_t peer = 0;
  bool put = false;   // the stream to the peer was full
  bool look = false;  // nothing had come from the peer
};

class Channel {
 public:
  virtual ~Channel() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Takes up to `bytes` for `peer` and returns how many (0: full). What was taken may change
  // afterwards. After a partial Put the next one starts with the first byte that was not taken and
  // holds at least as many bytes.
  virtual StatusOr<int64_t> Put(int32_t peer, const std::byte* data, int64_t bytes) = 0;
  // A message to `peer` is complete. Both sides end messages at the same bytes, so that a transport
  // may align them: no element of a message is cut by the end of a Look when its writer puts whole
  // elements.
  virtual void EndPut(int32_t peer) = 0;

  // What has come from `peer` and can be read in place; empty: nothing now. Unavailable once the
  // peer is gone.
  virtual StatusOr<absl::Span<const std::byte>> Look(int32_t peer) = 0;
  // The first `bytes` of the last Look have been used.
  virtual void Drop(int32_t peer, int64_t bytes) = 0;
  virtual void EndDrop(int32_t peer) = 0;

  // Returns when one of `wants` may succeed, now and then for no reason, and at `deadline`. An
  // error when the group was aborted or one of the wanted peers is gone.
  virtual Status Wait(absl::Span<const Want> wants, Deadline deadline) = 0;

  // A call begins. As cause(), but looks for what peers have told in the meantime.
  virtual Status Begin() { return cause(); }

  // OK until Abort was called here or, as far as this rank knows, anywhere; then the first cause.
  virtual Status cause() = 0;
  // Ends the running call and tells the peers. The first cause stays.
  virtual void Abort(const Status& cause) = 0;
};

// Unavailable for a peer that is gone, with the detail that recovery acts on.
Status PeerGone(int32_t peer, absl::string_view how);

// A cause as it travels between processes.
struct AbortRecord {
  int32_t code = 0;
  int32_t by = -1;    // the rank that aborted
  int32_t rank = -1;  // ErrorDetail::rank
  uint32_t length = 0;
  char text[496] = {};
};
AbortRecord ToRecord(const Status& cause, int32_t by);
// On `reader`'s side: other ranks' causes say who told. `record` may hold anything.
Status FromRecord(const AbortRecord& record, int32_t reader);

}  // namespace weft::comm
