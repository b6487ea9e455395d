// KernelTable: (op, device) -> kernel. Filled once by explicit calls (worker/core/ops/bind.cc),
// read-only afterwards and then safe to read from any thread.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "fabric/base/device_id.h"
#include "worker/core/dispatch/kernel_args.h"

namespace weft {

class KernelTable {
 public:
  // A second kernel for the same pair is a bug of ours and ends the process.
  void Add(const std::string& op, DeviceKind device, Kernel kernel);
  // nullptr when there is none.
  const Kernel* Find(const std::string& op, DeviceKind device) const;

 private:
  std::map<std::pair<std::string, DeviceKind>, Kernel> kernels_;
};

// All built-in kernels of this build, defined in worker/core/ops/bind.cc.
const KernelTable& BuiltinKernels();

}  // namespace weft
