#include "worker/core/device/nccl_link.h"

#ifdef WEFT_CUDA

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include <cuda_runtime.h>

#include "fabric/base/log.h"

namespace weft {
namespace {

// 2.28.3 to 2.28.8 have known faults; what is older was never tried.
constexpr int kOldestVersion = NCCL_VERSION(2, 28, 9);

// An orderly end may take so long before it becomes an abort.
constexpr absl::Duration kOrderly = absl::Seconds(3);
// Close waits so long for either.
constexpr absl::Duration kClose = absl::Seconds(5);
// An abort waits so long for a call that is in NCCL.
constexpr absl::Duration kLeave = absl::Seconds(1);

// NCCL answers after tens of microseconds when it only enqueues, after a second when it connects.
void Pause(int turn) {
  if (turn < 100) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(turn < 1000 ? 20 : 500));
  }
}

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

Status CheckNcclVersion() {
  int version = 0;
  RETURN_IF_ERROR(NcclStatus("asking for the version", ncclGetVersion(&version)));
  if (version >= kOldestVersion) return absl::OkStatus();
  return FailedPrecondition("NCCL ", VersionText(version), " was found at run time; ",
                            VersionText(kOldestVersion), " or newer is needed");
}

Status NcclStatus(absl::string_view doing, ncclResult_t result) {
  if (!NcclFailed(result)) return absl::OkStatus();
  std::string text = absl::StrCat("NCCL: ", doing, ": ", ncclGetErrorString(result));
  const char* const more = ncclGetLastError(nullptr);
  if (more != nullptr && more[0] != '\0') absl::StrAppend(&text, " (", more, ")");
  switch (result) {
    case ncclSystemError:
    case ncclRemoteError:
      return Unavailable(text);
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return FailedPrecondition(text);
    default:
      return Internal(text);
  }
}

StatusOr<std::shared_ptr<NcclLink>> NcclLink::Join(const NcclSpec& spec) {
  if (const cudaError_t error = cudaSetDevice(spec.device); error != cudaSuccess) {
    return FailedPrecondition("cuda:", spec.device, " cannot be used: ", cudaGetErrorString(error));
  }
  std::shared_ptr<NcclLink> link(new NcclLink(spec));
  if (spec.size == 1) return link;
  if (const Status status = link->Init(spec); !status.ok()) {
    link->Abort(status);
    link->Close();
    return Annotate(status, absl::StrCat("rank ", spec.rank, " of ", spec.size, " joining"));
  }
  return link;
}

Status NcclLink::Init(const NcclSpec& spec) {
  RETURN_IF_ERROR(CheckNcclVersion());
  ncclUniqueId id;
  if (spec.id.size() != sizeof(id.internal)) {
    return InvalidArgument("the group's NCCL id has ", spec.id.size(), " bytes, not ",
                           sizeof(id.internal));
  }
  std::memcpy(id.internal, spec.id.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const absl::Duration began = RealClock().Monotonic();
  RETURN_IF_ERROR(Call("joining", spec.deadline, [&](ncclComm_t) {
    return ncclCommInitRankConfig(&comm_, spec.size, id, spec.rank, &config);
  }));
  LOG_INFO("nccl joined rank={} size={} device={} ms={}", spec.rank, spec.size, spec.device,
           absl::ToInt64Milliseconds(RealClock().Monotonic() - began));
  return absl::OkStatus();
}

Status NcclLink::Call(absl::string_view doing, Deadline deadline, Body body) {
  {
    absl::MutexLock lock(&calls_);
    RETURN_IF_ERROR(cause());
    RETURN_IF_ERROR(NcclStatus(doing, body(comm_)));
  }
  return WaitUntilReady(doing, deadline);
}

Status NcclLink::Group(absl::string_view doing, Deadline deadline, Body body) {
  return Call(doing, deadline, [body](ncclComm_t comm) {
    const ncclResult_t started = ncclGroupStart();
    if (NcclFailed(started)) return started;
    // A group that was started has to be ended: NCCL keeps it by thread.
    const ncclResult_t filled = body(comm);
    const ncclResult_t ended = ncclGroupEnd();
    return NcclFailed(filled) ? filled : ended;
  });
}

Status NcclLink::WaitUntilReady(absl::string_view doing, Deadline deadline) {
  for (int turn = 0;; ++turn) {
    {
      absl::MutexLock lock(&calls_);
      RETURN_IF_ERROR(cause());
      ncclResult_t now = ncclSuccess;
      RETURN_IF_ERROR(NcclStatus(doing, ncclCommGetAsyncError(comm_, &now)));
      if (now != ncclInProgress) return NcclStatus(doing, now);
    }
    if (deadline.Expired()) {
      return DeadlineExceeded("NCCL: ", doing, ": the deadline passed on rank ", rank_);
    }
    Pause(turn);
  }
}

StatusOr<void*> NcclLink::Allocate(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is not sticky, but stays until it is read
    return ResourceExhausted("cuda:", device_, " has no ", bytes,
                             " bytes left for ordered reductions");
  }
  if (error != cudaSuccess) {
    return Internal("cuda:", device_, ": allocating: ", cudaGetErrorString(error));
  }
  memory_.push_back(data);
  return data;
}

Status NcclLink::cause() {
  absl::MutexLock lock(&state_);
  return cause_;
}

Status NcclLink::Health() {
  RETURN_IF_ERROR(cause());
  // A call that is under way watches itself.
  if (comm_ == nullptr || !calls_.TryLock()) return absl::OkStatus();
  ncclResult_t now = ncclSuccess;
  Status status = cause();
  if (status.ok()) status = NcclStatus("running", ncclCommGetAsyncError(comm_, &now));
  if (status.ok()) status = NcclStatus("running", now);
  calls_.Unlock();
  return status;
}

void NcclLink::Abort(const Status& cause) {
  absl::MutexLock lock(&state_);
  if (ending_) return;
  cause_ = cause.ok() ? Aborted("aborted without a cause") : cause;
  StartEnd(How::kAbort);
}

Status NcclLink::JoinAbort(Deadline deadline) {
  absl::MutexLock lock(&state_);
  if (!ending_ || state_.AwaitWithTimeout(absl::Condition(&ended_), deadline.Remaining())) {
    return absl::OkStatus();
  }
  return DeadlineExceeded(
      "NCCL's abort has not ended on rank ", rank_,
      "; it waits for graphs that hold the communicator, and for work that is queued");
}

void NcclLink::Close() {
  std::thread end;
  bool gone = false;
  {
    absl::MutexLock lock(&state_);
    if (!ending_) StartEnd(How::kOrderly);
    closed_ = true;
    gone = state_.AwaitWithTimeout(absl::Condition(&gone_), kClose);
    end = std::move(end_);
  }
  if (gone) {
    end.join();
  } else {
    LOG_WARN("nccl communicator does not end, left to its thread rank={}", rank_);
    end.detach();
  }
}

void NcclLink::StartEnd(How how) {
  ending_ = true;
  end_ = std::thread([self = shared_from_this(), how] { self->End(how); });
}

// Runs on end_. Only the last use of comm_ is without the lock: the calls before it have left, and
// those after it see the cause.
void NcclLink::End(How how) {
  // Without a device nothing below can work, and nothing is left to free.
  cudaSetDevice(device_);
  if (comm_ != nullptr) {
    const bool orderly =
        how == How::kOrderly && Call("ending", Deadline::After(kOrderly), ncclCommFinalize).ok();
    if (!orderly) LetCallsLeave();
    const ncclResult_t result = orderly ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
    if (NcclFailed(result)) {
      LOG_WARN("nccl communicator ended badly rank={} error=\"{}\"", rank_,
               ncclGetErrorString(result));
    }
  }
  {
    absl::MutexLock lock(&state_);
    ended_ = true;
    state_.Await(absl::Condition(&closed_));
  }
  // Here rather than in Close, since it waits for all work of the device.
  for (void* data : memory_) cudaFree(data);
  absl::MutexLock lock(&state_);
  gone_ = true;
}

// A call that stays in NCCL is stuck, and an abort is what frees it.
void NcclLink::LetCallsLeave() {
  const Deadline deadline = Deadline::After(kLeave);
  while (!calls_.TryLock()) {
    if (deadline.Expired()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  calls_.Unlock();
}

}  // namespace weft

#endif  // WEFT_CUDA
