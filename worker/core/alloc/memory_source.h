// MemorySource: where an allocator gets whole segments of a device's memory. One implementation a
// kind of device; the CPU's is here. Owns nothing by itself. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "fabric/base/device_id.h"
#include "fabric/base/status.h"

namespace weft {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // ResourceExhausted when the device has no `bytes` left. The bytes hold anything.
  virtual StatusOr<void*> Obtain(size_t bytes) = 0;
  virtual void Return(void* data, size_t bytes) = 0;
  virtual DeviceId device() const = 0;
  // What every segment starts at a multiple of; blocks within it then do too. A power of two.
  virtual size_t alignment() const = 0;
};

// Process memory, aligned to 64 bytes: a cache line and the widest vector.
std::unique_ptr<MemorySource> MakeCpuSource();

}  // namespace weft
