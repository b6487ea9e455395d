// The op families, one row each: what adds its literals, and what adds its kernels for each device.
// Lists them for opset.cc and bind.cc only; callers use BuiltinOpSet() and BuiltinKernels().
#pragma once

namespace weft {

class KernelTable;
class OpSet;

void AddElementwiseOps(OpSet* set);
void AddReduceOps(OpSet* set);
void AddViewOps(OpSet* set);
void AddIndexOps(OpSet* set);
void AddRandomOps(OpSet* set);
void AddMatmulOps(OpSet* set);
void AddNormOps(OpSet* set);
void AddAttentionOps(OpSet* set);
void AddLossOps(OpSet* set);
void AddOptimOps(OpSet* set);
void AddImageOps(OpSet* set);

void RegisterElementwiseCpu(KernelTable* table);
void RegisterReduceCpu(KernelTable* table);
void RegisterViewCpu(KernelTable* table);
void RegisterIndexCpu(KernelTable* table);
void RegisterRandomCpu(KernelTable* table);
void RegisterMatmulCpu(KernelTable* table);
void RegisterNormCpu(KernelTable* table);
void RegisterAttentionCpu(KernelTable* table);
void RegisterLossCpu(KernelTable* table);
void RegisterOptimCpu(KernelTable* table);
void RegisterImageCpu(KernelTable* table);

// Defined where a CUDA toolkit is.
void RegisterElementwiseCuda(KernelTable* table);
void RegisterReduceCuda(KernelTable* table);
void RegisterViewCuda(KernelTable* table);
void RegisterIndexCuda(KernelTable* table);
void RegisterRandomCuda(KernelTable* table);
void RegisterMatmulCuda(KernelTable* table);
void RegisterNormCuda(KernelTable* table);
void RegisterAttentionCuda(KernelTable* table);
void RegisterLossCuda(KernelTable* table);
void RegisterOptimCuda(KernelTable* table);
void RegisterImageCuda(KernelTable* table);

}  // namespace weft
