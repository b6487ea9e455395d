// Kernels that move or convert elements of any dtype: copy, cast, fill.
#pragma once

namespace weft {

class KernelTable;

void RegisterCopiesCpu(KernelTable* table);
// Defined where a CUDA toolkit is.
void RegisterCopiesCuda(KernelTable* table);

}  // namespace weft
