// Where no CUDA toolkit is: no device exists to call these for.
#include "worker/core/device/step_kernels.h"

#ifndef WEFT_CUDA
namespace weft {

int SetFloat(float*, const float*, void*) { return -1; }
int CheckStep(const float*, int, int, const int32_t*, int32_t*, void*) { return -1; }
int FinishStep(const float*, int, const float*, const int32_t*, int64_t*, StepSlot*, int, void*) {
  return -1;
}

}  // namespace weft
#endif
