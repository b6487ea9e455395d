// The runtime core as a library: tensors, ops and gradients, without a daemon. The one header that
// its users include. Link //worker/core.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Core> core, Core::Open({.threads = 2, .seed = 1}));
//   EagerEmitter& e = core->emitter();
//   Tensor w = e.Make<float>({2, 2}, {1, 2, 3, 4});
//   RETURN_IF_ERROR(RequireGrad(w));
//   Tensor loss = e.Run("sum", {Mul(e, w, w)});
//   RETURN_IF_ERROR(Backward(e, loss));   // also reports the first error of the ops above
//   GradOf(w);                            // {2, 4, 6, 8}
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "fabric/opset/grad_helpers.h"
#include "worker/core/autograd/backward.h"
#include "worker/core/autograd/tape.h"
#include "worker/core/dispatch/eager.h"

namespace weft {

struct CoreOptions {
  int threads = 1;    // that compute, the caller's included; never changes bits
  uint64_t seed = 0;  // of random ops
  int64_t memory_cap_bytes = std::numeric_limits<int64_t>::max();
};

// Thread pool, allocator, trace and an emitter over the built-in ops, on the CPU. Used from one
// thread at a time; tensors may outlive it.
class Core {
 public:
  // InvalidArgument when an option is out of range.
  static StatusOr<std::unique_ptr<Core>> Open(const CoreOptions& options = {});
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  EagerEmitter& emitter() { return *emitter_; }
  CachingAllocator& allocator() { return *allocator_; }
  TraceRing& trace() { return *trace_; }
  // A fresh emitter over the same pool and memory: its own first error, and random numbers from
  // `seed`.
  std::unique_ptr<EagerEmitter> NewEmitter(uint64_t seed);

 private:
  Core() = default;

  std::unique_ptr<TileRunner> tiles_;
  std::shared_ptr<CachingAllocator> allocator_;
  std::shared_ptr<TraceRing> trace_;
  std::unique_ptr<EagerEmitter> emitter_;
};

}  // namespace weft
