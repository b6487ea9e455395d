#include "worker/core/dispatch/kernel_table.h"

#include "fabric/base/check.h"

namespace weft {

void KernelTable::Add(const std::string& op, DeviceKind device, Kernel kernel) {
  WEFT_CHECK(kernel.launch != nullptr);
  const bool fresh = kernels_.emplace(std::make_pair(op, device), kernel).second;
  WEFT_CHECK(fresh);
}

const Kernel* KernelTable::Find(const std::string& op, DeviceKind device) const {
  const auto it = kernels_.find({op, device});
  return it == kernels_.end() ? nullptr : &it->second;
}

}  // namespace weft
