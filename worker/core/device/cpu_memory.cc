// The CPU behind the device seam: plain memory, and work that is done when the call returns.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "worker/core/device/cpu_device.h"
#include "worker/core/device/device.h"

namespace weft {
namespace {

constexpr int64_t kAlignment = 4096;

class CpuDevice final : public Device {
 public:
  DeviceId id() const override { return {DeviceKind::kCpu, 0}; }
  DeviceInfo info() const override {
    return {CpuModel(), static_cast<int32_t>(std::thread::hardware_concurrency()), 0, {}};
  }

  StatusOr<void*> Allocate(int64_t bytes) override {
    const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(static_cast<size_t>(kAlignment), static_cast<size_t>(size));
    if (data == nullptr) return ResourceExhausted("no ", bytes, " bytes of host memory");
    constexpr int64_t kHugePage = int64_t{2} << 20;
    // Advice only: failure changes nothing.
    if (size >= kHugePage) madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);
    return data;
  }
  void Free(void* data) override { std::free(data); }
  StatusOr<void*> AllocatePinned(int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(void* data) override { Free(data); }
  Status MemoryInUse(int64_t*, int64_t*) override {
    return absl::UnimplementedError("host memory is not counted here");
  }

  StatusOr<StreamTag> CreateStream() override { return StreamTag{}; }
  void DestroyStream(StreamTag) override {}
  Status Synchronize(StreamTag) override { return absl::OkStatus(); }
  StatusOr<EventTag> CreateEvent() override { return EventTag{}; }
  void DestroyEvent(EventTag) override {}
  Status Record(EventTag, StreamTag) override { return absl::OkStatus(); }
  Status Wait(StreamTag, EventTag) override { return absl::OkStatus(); }
  StatusOr<bool> Done(EventTag) override { return true; }
  StatusOr<double> MillisecondsBetween(EventTag, EventTag) override {
    return absl::UnimplementedError("the CPU's events have no time");
  }

  Status Copy(void* to, const void* from, int64_t bytes, StreamTag) override {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  Status Fill(void* to, uint8_t byte, int64_t bytes, StreamTag) override {
    std::memset(to, byte, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  Status BeginCapture(StreamTag) override { return NoGraphs(); }
  StatusOr<GraphTag> EndCapture(StreamTag) override { return NoGraphs(); }
  Status LaunchGraph(GraphTag, StreamTag) override { return NoGraphs(); }
  void DestroyGraph(GraphTag) override {}

  bool poisoned() const override { return false; }
  std::string Describe(int error) const override { return absl::StrCat("error ", error); }

 private:
  static Status NoGraphs() { return absl::UnimplementedError("the CPU records no graphs"); }
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace weft
