// One thread each: a kernel in a graph costs about a microsecond however little it does.
#include <cuda_runtime.h>

#include "worker/core/device/step_kernels.h"

namespace weft {
namespace {

__global__ void SetFloatKernel(float* to, const volatile float* from) { *to = *from; }

__global__ void CheckStepKernel(const float* stats, int loss, int count,
                                const volatile int32_t* poison, int32_t* gate) {
  // All asked for at once: the host's word is a microsecond away.
  const int32_t poisoned = *poison, closed = *gate;
  const float mean = stats[loss] / stats[count];
  if (closed != kGateOpen) return;
  if (poisoned != 0) {
    *gate = kGatePoisoned;
  } else if (!isfinite(mean)) {
    *gate = kGateNotFinite;
  }
}

__global__ void FinishStepKernel(const float* stats, int stat_count, const float* requests,
                                 const int32_t* gate, int64_t* step, StepSlot* ring, int slots) {
  // All read before anything is written, so that nothing waits for one read after the other.
  StepSlot result = {};
#pragma unroll
  for (int i = 0; i < StepSlot::kMostStats; ++i) {
    if (i < stat_count) result.stats[i] = stats[i];
  }
  result.requests = *requests;
  result.gate = *gate;
  const int64_t now = *step;
  StepSlot* const slot = ring + now % slots;
#pragma unroll
  for (int i = 0; i < StepSlot::kMostStats; ++i) {
    if (i < stat_count) slot->stats[i] = result.stats[i];
  }
  slot->requests = result.requests;
  slot->gate = result.gate;
  *step = now + 1;
  // The host reads the rest once it sees the number.
  __threadfence_system();
  *const_cast<volatile uint64_t*>(&slot->sequence) = static_cast<uint64_t>(now + 1);
}

cudaStream_t Of(void* stream) { return static_cast<cudaStream_t>(stream); }
int LaunchError() { return static_cast<int>(cudaGetLastError()); }

}  // namespace

int SetFloat(float* to, const float* from, void* stream) {
  SetFloatKernel<<<1, 1, 0, Of(stream)>>>(to, from);
  return LaunchError();
}

int CheckStep(const float* stats, int loss, int count, const int32_t* poison, int32_t* gate,
              void* stream) {
  CheckStepKernel<<<1, 1, 0, Of(stream)>>>(stats, loss, count, poison, gate);
  return LaunchError();
}

int FinishStep(const float* stats, int stat_count, const float* requests, const int32_t* gate,
               int64_t* step, StepSlot* ring, int slots, void* stream) {
  FinishStepKernel<<<1, 1, 0, Of(stream)>>>(stats, stat_count, requests, gate, step, ring, slots);
  return LaunchError();
}

}  // namespace weft
