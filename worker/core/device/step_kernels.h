// The few device kernels that hold a recorded step together: they pass on the host's words, decide
// whether the update may happen, and leave the step's result where the host finds it. Each returns
// 0 or the runtime's error number; all are queued on `stream` (StreamTag::handle).
#pragma once

#include <cstdint>

namespace weft {

// What one step leaves for the host, in pinned memory. `sequence` is written last.
struct StepSlot {
  static constexpr int kMostStats = 8;
  float stats[kMostStats];
  float requests;
  int32_t gate;
  uint64_t sequence;  // the step's number + 1
};

// Host words that a recorded step reads while it runs, in pinned memory.
struct StepControl {
  float request;
  int32_t poison;
};

// The gate: once it is not open it stays so, and in-place ops leave their operands alone.
enum StepGate : int32_t { kGateOpen = 0, kGatePoisoned = 1, kGateNotFinite = 2 };

// *to = *from, a host word.
int SetFloat(float* to, const float* from, void* stream);

// After the last collective, before the first update: closes the gate when the host has set
// *poison, or when stats[loss] / stats[count] is not finite.
int CheckStep(const float* stats, int loss, int count, const int32_t* poison, int32_t* gate,
              void* stream);

// After the update: fills slot *step % slots of `ring` and counts the step.
int FinishStep(const float* stats, int stat_count, const float* requests, const int32_t* gate,
               int64_t* step, StepSlot* ring, int slots, void* stream);

}  // namespace weft
