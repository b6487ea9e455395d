// Names a device of this node: its kind and its index.
#pragma once

#include <cstdint>

namespace weft {

enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

constexpr const char* NameOf(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

}  // namespace weft
