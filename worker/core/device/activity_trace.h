// ActivityTrace: what a device did and when, kernel by kernel. The vendor's tracing library is
// looked for at run time only, so nothing needs it where no profile is made. One at a time in a
// process; used from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "fabric/base/status.h"
#include "fabric/base/stream.h"

namespace weft {

struct DeviceActivity {
  enum class Kind { kKernel, kCopy, kFill };
  Kind kind = Kind::kKernel;
  std::string name;      // of the kernel, demangled; "copy to device"
  absl::Duration begin;  // monotonic, of the host
  absl::Duration end;
  int64_t stream = 0;
  int64_t bytes = 0;   // of a copy or fill
  int32_t label = -1;  // as given to Label; -1: none
};

class ActivityTrace {
 public:
  virtual ~ActivityTrace() = default;
  // What `stream`'s recording was given since the last call belongs to `label`, in every graph that
  // is made of it. No effect when the stream does not record.
  virtual void Label(StreamTag stream, int32_t label) = 0;
  // Between the two, activities are kept. Both wait for the device.
  virtual Status Start() = 0;
  virtual StatusOr<std::vector<DeviceActivity>> Stop() = 0;
};

// Before the first recording whose work is to be labelled. FailedPrecondition: the build has no
// CUDA, the tracing library is missing, or another profiler holds it; says what to do.
StatusOr<std::unique_ptr<ActivityTrace>> MakeCudaActivityTrace();

// "13.0.85"-like text of the tracing library, for people; errors as above.
StatusOr<std::string> CudaActivityTraceVersion();

// What a device reaches at best, by its data sheet's rules at its highest clocks; 0: not known.
struct DeviceCeilings {
  double memory_bytes = 0;  // a second
  double fp32_flops = 0;    // a second
  double tf32_flops = 0;
  double bf16_flops = 0;
};
DeviceCeilings CudaCeilings(int32_t index);

}  // namespace weft
