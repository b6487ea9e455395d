// HostState: parameters and optimizer states as the host sees them, for initialization, digests and
// checkpoints. On the CPU these are the rank's own buffers; for a device they are copies, which
// Fetch and Store bring across.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/buffer.h"
#include "fabric/base/status.h"
#include "worker/core/device/device.h"
#include "worker/exec/rank_memory.h"

namespace weft {

class HostState {
 public:
  HostState() = default;
  // `device` and `memory` outlive it.
  static StatusOr<HostState> Make(Device* device, const RankMemory* memory);

  float* param() const { return flat_[0]; }
  float* state(size_t i) const { return flat_[i + 1]; }
  int64_t flat_elements() const { return memory_->flat_elements(); }

  // Both wait for the device's queued work on `stream`.
  Status Fetch(StreamTag stream);
  Status Store(StreamTag stream);

 private:
  float* OnDevice(size_t i) const { return i == 0 ? memory_->param() : memory_->state(i - 1); }

  Device* device_ = nullptr;
  const RankMemory* memory_ = nullptr;
  std::vector<Buffer> copies_;  // pinned; none on the CPU
  std::vector<float*> flat_;    // parameters, then each state
};

}  // namespace weft
