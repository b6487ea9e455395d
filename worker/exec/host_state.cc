#include "worker/exec/host_state.h"

#include <cstring>

namespace weft {

StatusOr<HostState> HostState::Make(Device* device, const RankMemory* memory) {
  HostState host;
  host.device_ = device;
  host.memory_ = memory;
  const size_t count = memory->states() + 1;
  const int64_t bytes = memory->flat_elements() * static_cast<int64_t>(sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    if (device->id().kind == DeviceKind::kCpu) {
      host.flat_.push_back(host.OnDevice(i));
      continue;
    }
    ASSIGN_OR_RETURN(void* const data, device->AllocatePinned(bytes));
    std::memset(data, 0, static_cast<size_t>(bytes));
    host.copies_.emplace_back(data, static_cast<size_t>(bytes), DeviceId{},
                              [device](void* p, size_t) { device->FreePinned(p); });
    host.flat_.push_back(static_cast<float*>(data));
  }
  return host;
}

Status HostState::Fetch(StreamTag stream) {
  for (size_t i = 0; i < copies_.size(); ++i) {
    RETURN_IF_ERROR(
        device_->Copy(flat_[i], OnDevice(i), static_cast<int64_t>(copies_[i].bytes()), stream));
  }
  return device_->Synchronize(stream);
}

Status HostState::Store(StreamTag stream) {
  for (size_t i = 0; i < copies_.size(); ++i) {
    RETURN_IF_ERROR(
        device_->Copy(OnDevice(i), flat_[i], static_cast<int64_t>(copies_[i].bytes()), stream));
  }
  return device_->Synchronize(stream);
}

}  // namespace weft
