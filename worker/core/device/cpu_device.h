// The CPU as a device: its thread pool, and the instruction set its kernels run with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "worker/core/dispatch/kernel_args.h"

namespace weft {

// One pool for everything that computes in this process: `threads` - 1 threads beside the caller.
// Run from one thread at a time. Threads spin briefly, then sleep, between calls.
std::unique_ptr<TileRunner> MakeThreadPool(int threads);

// Instruction sets that our kernels are compiled for and this CPU has, best first: of "avx512",
// "avx2", "sse2". Bits may differ between them, so a job's numerics section names one.
std::vector<std::string> SupportedInstructionSets();

// Makes every CPU kernel of this process use `name`. Call before the first kernel is
// bound; once kernels have run, a different name is refused with FailedPrecondition.
Status UseInstructionSet(const std::string& name);

// The set in use (the best one unless UseInstructionSet chose another).
std::string CurrentInstructionSet();

// "AMD EPYC ..." from /proc/cpuinfo, for records.
std::string CpuModel();

}  // namespace weft
