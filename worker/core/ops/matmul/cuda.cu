// CUDA kernels of the family.
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

namespace weft {

void RegisterMatmulCuda(KernelTable*) {}

}  // namespace weft
