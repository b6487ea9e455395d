// One op's kernel on a device, bound to operands between guards, to be launched as often as a test
// wants. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "tests/ops/kernel_run.h"
#include "worker/core/device/device.h"

namespace weft::testing {

// The device that the process tests on, with a stream; made once. Dies where there is none.
struct GpuUnderTest {
  std::unique_ptr<Device> device;
  StreamTag stream;
};
GpuUnderTest& Gpu();

class DeviceCall {
 public:
  // Copies `in` (host) over and binds. Internal: the kernel refuses the operands. Unimplemented:
  // there is no kernel.
  static StatusOr<std::unique_ptr<DeviceCall>> Make(const OpDef& op,
                                                    const std::vector<ArrayRef>& in,
                                                    const Attrs& attrs,
                                                    const std::string& candidate);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;

  static std::vector<std::string> Candidates(const OpDef& op, const std::vector<ArrayRef>& in,
                                             const Attrs& attrs);

  // Fills results with 0xff and launches, or records and launches a graph.
  enum class How { kEager, kCaptured };
  Status Launch(const StepState& step, How how);
  // Waits. Internal: a guard was overwritten.
  StatusOr<std::vector<HostArray>> Results();

 private:
  struct Operand {
    char* base = nullptr;  // with the guard
    int64_t bytes = 0;
    ArrayRef ref;  // on the device
  };
  DeviceCall() = default;
  Status Place(const ArrayRef& host, Operand* operand);
  Status Run(const StepState& step);

  const Kernel* kernel_ = nullptr;
  Bound bound_;
  std::vector<Operand> in_, out_;
  Operand scratch_;
  std::vector<TensorMeta> out_metas_;
  size_t written_ = 0;  // leading inputs that are results too
};

}  // namespace weft::testing
