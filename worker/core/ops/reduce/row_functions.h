// The CUDA kernels that see a whole last dimension: softmax, log_softmax, argmax.
#pragma once

namespace weft {

class KernelTable;

void RegisterRowFunctionsCuda(KernelTable* table);

}  // namespace weft
