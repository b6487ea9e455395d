// What ends a daemon: SIGTERM, SIGINT, or the end of the process that started it for one job.
#pragma once

#include "fabric/base/status.h"

namespace weft::wire {

enum class ShutdownCause { kSignal, kParentGone };

// Blocks SIGTERM and SIGINT in this thread and those it starts, and ignores SIGPIPE. Call first in
// main.
void BlockShutdownSignals();

// Waits until one of the two arrives or `parent_pid` (0: none) is gone, however it went and even if
// it went before the call.
StatusOr<ShutdownCause> WaitForShutdown(int parent_pid);

}  // namespace weft::wire
