// The step runner of the CPU, for StepRunner::Create.
#pragma once

#include <memory>

#include "fabric/base/status.h"
#include "worker/exec/step_runner.h"

namespace weft {

StatusOr<std::unique_ptr<StepRunner>> MakeCpuStepRunner(const StepParts& parts);

}  // namespace weft
