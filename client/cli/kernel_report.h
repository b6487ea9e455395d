// The table of kernels that a job with a profile leaves (worker/exec/step_trace writes it), for
// people. Pure.
#pragma once

#include <string>

#include "client/cli/printer.h"
#include "fabric/base/status.h"

namespace weft::cli {

struct KernelReport {
  Table table;          // the longest first; what takes less than 0.1 % in one row
  std::string summary;  // a line or two, without the last newline
};

// `text` is a kernels.json. DataLoss when it is none.
StatusOr<KernelReport> ReadKernelReport(const std::string& text);

}  // namespace weft::cli
