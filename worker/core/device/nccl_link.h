// One rank's end of an NCCL communicator, with what the library leaves to its user: every call has
// a deadline, errors are Status, and the end can neither hang its caller nor race with a call.
//
// Shared with the thread that ends it, which stays in NCCL for as long as a recorded graph holds
// the communicator. Call and Allocate by one thread at a time; the rest from any thread. Only in
// builds with CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <nccl.h>

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "worker/core/device/nccl_communicator.h"

namespace weft {

// OK when NCCL can be used: FailedPrecondition for a version with known faults.
Status CheckNcclVersion();

// Unavailable: a peer or the network; FailedPrecondition: NCCL cannot work like this.
Status NcclStatus(absl::string_view doing, ncclResult_t result);

// Calls inside a group may also answer "in progress".
inline bool NcclFailed(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclLink : public std::enable_shared_from_this<NcclLink> {
 public:
  using Body = absl::FunctionRef<ncclResult_t(ncclComm_t)>;

  // A group of one has no NCCL communicator; its link owns memory only.
  static StatusOr<std::shared_ptr<NcclLink>> Join(const NcclSpec& spec);

  // Runs `body`, then waits until NCCL has done its part on the host.
  Status Call(absl::string_view doing, Deadline deadline, Body body);
  // `body` between ncclGroupStart and ncclGroupEnd.
  Status Group(absl::string_view doing, Deadline deadline, Body body);

  // Device memory that lives until after Close, as what is queued may use it.
  StatusOr<void*> Allocate(int64_t bytes);

  // Not OK after Abort.
  Status cause();
  Status Health();
  void Abort(const Status& cause);
  // OK at once when Abort was not called.
  Status JoinAbort(Deadline deadline);
  // Ends the link, in order unless it was aborted, and leaves it to its thread after a while. The
  // last call.
  void Close();

 private:
  enum class How : uint8_t { kOrderly, kAbort };

  explicit NcclLink(const NcclSpec& spec) : rank_(spec.rank), device_(spec.device) {}
  Status Init(const NcclSpec& spec);
  Status WaitUntilReady(absl::string_view doing, Deadline deadline);
  void StartEnd(How how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_);
  void End(How how);
  void LetCallsLeave();

  const int32_t rank_;
  const int32_t device_;

  // Held around each use of comm_, but for the last: NCCL's own state is not guarded.
  absl::Mutex calls_;
  ncclComm_t comm_ = nullptr;

  std::vector<void*> memory_;  // of the owner until Close, then of end_

  absl::Mutex state_;
  Status cause_ ABSL_GUARDED_BY(state_);
  bool ending_ ABSL_GUARDED_BY(state_) = false;  // end_ was started
  bool ended_ ABSL_GUARDED_BY(state_) = false;   // NCCL has let go
  bool closed_ ABSL_GUARDED_BY(state_) = false;  // the owner has
  bool gone_ ABSL_GUARDED_BY(state_) = false;    // the memory is freed too
  std::thread end_ ABSL_GUARDED_BY(state_);
};

}  // namespace weft
