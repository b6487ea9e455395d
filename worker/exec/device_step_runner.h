// The step runner of devices with queues and graphs, for StepRunner::Create.
#pragma once

#include <memory>

#include "fabric/base/status.h"
#include "worker/exec/step_runner.h"

namespace weft {

StatusOr<std::unique_ptr<StepRunner>> MakeDeviceStepRunner(const StepParts& parts);

}  // namespace weft
