// Device: the seam between Weft and a vendor's runtime. These calls, the kernels (ops/*/*.cu) and a
// communicator are all that a backend consists of; nothing else includes a vendor's headers.
//
// Work on one stream runs in order; different streams are ordered by events only. Calls are
// thread-safe unless said otherwise. A failed call is Internal with the runtime's own words, or
// ResourceExhausted where memory ran out; after a sticky error (`poisoned`) every later call fails
// too, and the process has to end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fabric/base/device_id.h"
#include "fabric/base/status.h"
#include "fabric/base/stream.h"

namespace weft {

struct DeviceInfo {
  std::string model;  // "NVIDIA H200", "AMD EPYC ..."
  int32_t processors = 0;
  int64_t memory_bytes = 0;
  std::map<std::string, std::string> libraries;  // name -> version; bits may depend on them
};

// A place in a stream's work.
struct EventTag {
  void* handle = nullptr;
};
// Recorded work, ready to be launched as one.
struct GraphTag {
  void* handle = nullptr;
  int64_t nodes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  virtual DeviceInfo info() const = 0;

  // Device memory, aligned to 256 bytes, holding anything. Not for the running step: see
  // CachingAllocator and RankMemory.
  virtual StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* data) = 0;
  // Host memory that copies to and from the device do not wait for, and that kernels can reach at
  // the same address.
  virtual StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* data) = 0;
  // Free and total bytes of the whole device, whoever uses them.
  virtual Status MemoryInUse(int64_t* free, int64_t* total) = 0;

  virtual StatusOr<StreamTag> CreateStream() = 0;
  virtual void DestroyStream(StreamTag stream) = 0;
  // Waits until all that was queued is done.
  virtual Status Synchronize(StreamTag stream) = 0;

  virtual StatusOr<EventTag> CreateEvent() = 0;
  virtual void DestroyEvent(EventTag event) = 0;
  virtual Status Record(EventTag event, StreamTag stream) = 0;
  // Later work of `stream` waits for the event's last record.
  virtual Status Wait(StreamTag stream, EventTag event) = 0;
  // Whether the event's last record has been reached.
  virtual StatusOr<bool> Done(EventTag event) = 0;
  // Between two recorded and reached events.
  virtual StatusOr<double> MillisecondsBetween(EventTag begin, EventTag end) = 0;

  // Queued. Either side may be on the host; a host side that is not pinned makes the call wait.
  virtual Status Copy(void* to, const void* from, int64_t bytes, StreamTag stream) = 0;
  virtual Status Fill(void* to, uint8_t byte, int64_t bytes, StreamTag stream) = 0;

  // Between the two, work on `stream` (and on streams that wait for its events) is recorded and not
  // run. One recording at a time.
  virtual Status BeginCapture(StreamTag stream) = 0;
  virtual StatusOr<GraphTag> EndCapture(StreamTag stream) = 0;
  virtual Status LaunchGraph(GraphTag graph, StreamTag stream) = 0;
  virtual void DestroyGraph(GraphTag graph) = 0;

  // Whether an earlier error has made the device unusable for this process.
  virtual bool poisoned() const = 0;
  // Words for an error number that a kernel's launch returned.
  virtual std::string Describe(int error) const = 0;
};

// The CPU: its one stream is the null tag and done at once; it records no graphs (Unimplemented).
std::unique_ptr<Device> MakeCpuDevice();

// How many CUDA devices this process sees; 0 where there is no driver or no toolkit was built in.
int CudaDeviceCount();
// FailedPrecondition says what is missing (build, driver, device).
StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int32_t index);

}  // namespace weft
