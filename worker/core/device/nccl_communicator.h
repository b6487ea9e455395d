// NCCL behind the communicator's contract: tensors of CUDA devices, any kind, count and number of
// ranks; calls are enqueued on the stream and may be recorded into graphs.
//
// Beside the contract:
// - Calls on different streams are ordered by the caller, with events.
// - Ordered reductions may need device memory of their own: Reserve before recording them. What an
//   earlier reservation made and is too small stays until the end, so begin with the largest.
// - Launch's deadline bounds what the host waits for (connecting, enqueuing). That enqueued work
// can
//   still end is the caller's watch, with Health and a clock: NCCL does not notice every lost peer.
// - A recorded graph holds the communicator. After Abort the stream drains at once, and whatever
//   follows a collective runs on garbage; the abort itself returns once the graphs are destroyed:
//     Abort(cause), wait for the stream, destroy the graphs, JoinAbort, drop, join anew.
//   Destroy graphs before the communicator also without an abort.
// - All members drop a communicator at about the same time: NCCL waits for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"
#include "worker/core/device/device.h"

namespace weft {

class NcclCommunicator : public comm::Communicator {
 public:
  // Ends an unfinished group in order if it can. Never waits longer than a few seconds: what is
  // stuck in NCCL then is left to a thread of its own, with a line in the log.
  ~NcclCommunicator() override = default;

  // Waits for an abort to be over; OK at once when there was none. DeadlineExceeded while a graph
  // still holds the communicator.
  virtual Status JoinAbort(Deadline deadline) = 0;
};

struct NcclSpec {
  int32_t rank = 0;
  int32_t size = 1;
  std::string id;      // of NewNcclId, the same on all ranks; a group of one needs none
  int32_t device = 0;  // index of this rank's CUDA device
  Deadline deadline = Deadline::Infinite();  // for the join
};

// What names a new group; made by one rank. FailedPrecondition where NCCL cannot be used (no CUDA
// in this build, a version with known faults).
StatusOr<std::string> NewNcclId();

StatusOr<std::unique_ptr<NcclCommunicator>> JoinNccl(const NcclSpec& spec);

// Joins the members of `host`, each with its device; the id travels over `host`. An obstacle on one
// rank (no device, another version) is everyone's error, and names that rank.
StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclOver(comm::Communicator* host, Device* device,
                                                         Deadline deadline);

}  // namespace weft
