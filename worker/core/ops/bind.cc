// The list of families' kernels.
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

namespace weft {

const KernelTable& BuiltinKernels() {
  static const KernelTable* const table = [] {
    auto* kernels = new KernelTable;
    RegisterElementwiseCpu(kernels);
    RegisterReduceCpu(kernels);
    RegisterViewCpu(kernels);
    RegisterIndexCpu(kernels);
    RegisterRandomCpu(kernels);
    RegisterMatmulCpu(kernels);
    RegisterNormCpu(kernels);
    RegisterAttentionCpu(kernels);
    RegisterLossCpu(kernels);
    RegisterOptimCpu(kernels);
    RegisterImageCpu(kernels);
#ifdef WEFT_CUDA
    RegisterElementwiseCuda(kernels);
    RegisterReduceCuda(kernels);
    RegisterViewCuda(kernels);
    RegisterIndexCuda(kernels);
    RegisterRandomCuda(kernels);
    RegisterMatmulCuda(kernels);
    RegisterNormCuda(kernels);
    RegisterAttentionCuda(kernels);
    RegisterLossCuda(kernels);
    RegisterOptimCuda(kernels);
    RegisterImageCuda(kernels);
#endif
    return kernels;
  }();
  return *table;
}

}  // namespace weft
