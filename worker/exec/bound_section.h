// A section of a program with its kernels bound: what the step runs, without lookups or allocation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/base/device_id.h"
#include "fabric/base/status.h"
#include "fabric/graph/program.h"
#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/exec/rank_memory.h"
#include "worker/exec/step_trace.h"

namespace weft {

// How a section runs: on which threads or stream, with which scratch.
struct Launcher {
  TileRunner* tiles = nullptr;  // CPU
  StreamTag stream;
  void* scratch = nullptr;
  const int64_t* device_step = nullptr;  // as in KernelArgs
  const int32_t* gate = nullptr;
  const Device* device = nullptr;  // gives errors their words
  StepTrace* trace = nullptr;      // null: nothing is traced; else the section has its names
};

class BoundSection {
 public:
  BoundSection() = default;

  // Finds and binds each call's kernel. NotFound names the op without a kernel, InvalidArgument the
  // node whose operands its kernel refuses.
  static StatusOr<BoundSection> Bind(const Section& section, const KernelTable& kernels,
                                     DeviceKind device, int threads);

  // Names the calls to `trace`. `section` is what this was bound from.
  void Name(absl::string_view name, const Section& section, StepTrace* trace);

  // Runs all calls in order. Not thread-safe: operand addresses are patched in place.
  Status Run(const SpaceBases& bases, const Launcher& launcher, const StepState& step);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  bool empty() const { return calls_.empty(); }

 private:
  struct Address {
    Space space;
    int32_t index;
    int64_t offset;  // bytes
  };
  struct BoundCall {
    const Kernel* kernel = nullptr;
    Bound bound;
    std::string node;
    std::vector<ArrayRef> operands;  // inputs, then outputs
    std::vector<Address> addresses;
    int in_count = 0;
    int out_count = 0;
    int32_t label = -1;  // of a trace
  };
  std::vector<BoundCall> calls_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace weft
