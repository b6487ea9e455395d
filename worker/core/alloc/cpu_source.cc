#include <cstdlib>
#include <new>

#include "worker/core/alloc/memory_source.h"

namespace weft {
namespace {

class CpuSource final : public MemorySource {
 public:
  StatusOr<void*> Obtain(size_t bytes) override {
    void* data = ::operator new (bytes, std::align_val_t{alignment()}, std::nothrow);
    if (data == nullptr) return ResourceExhausted("the system has no ", bytes, " bytes left");
    return data;
  }
  void Return(void* data, size_t) override {
    ::operator delete (data, std::align_val_t{alignment()}, std::nothrow);
  }
  DeviceId device() const override { return {DeviceKind::kCpu, 0}; }
  size_t alignment() const override { return 64; }
};

}  // namespace

std::unique_ptr<MemorySource> MakeCpuSource() { return std::make_unique<CpuSource>(); }

}  // namespace weft
