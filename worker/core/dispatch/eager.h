// EagerEmitter: the emitter that runs: each op's kernel at once, and onto the tape what gradients
// flow through. The public entry of the core as a library; fabric/opset/grad_helpers.h has wrappers
// for common ops. As with every emitter the first error stays, later emits do nothing, and status()
// is asked once.
//
// Owns the allocator's reference, the bind cache and the save-plan cache; tensors may outlive it.
// Used from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fabric/opset/emitter.h"
#include "worker/core/autograd/backward.h"
#include "worker/core/autograd/tape.h"
#include "worker/core/dispatch/dispatcher.h"

namespace weft {

class EagerEmitter final : public Emitter {
 public:
  // `seed` keys random ops, beside a counter of calls that fills in their `key` attribute where it
  // is not given: the same calls in the same order draw the same numbers.
  explicit EagerEmitter(DispatchContext context, uint64_t seed = 0);

  Values EmitAll(absl::string_view op, const Values& inputs, const Attrs& attrs) override;

  // Like Emit, as a tensor; invalid on error.
  Tensor Run(absl::string_view op, const Values& inputs, const Attrs& attrs = {}) {
    return Tensor::From(Emit(op, inputs, attrs));
  }
  // A host tensor of these elements (types as in tensor.h); invalid on error.
  template <typename T>
  Tensor Make(const Shape& shape, const std::vector<T>& elements) {
    StatusOr<Tensor> tensor = TensorFrom(allocator(), shape, elements);
    if (tensor.ok()) return *std::move(tensor);
    Fail(tensor.status());
    return {};
  }

  // The position that random ops are keyed by beside `key`; its seed is the emitter's until set.
  void set_step(const StepState& step) { step_ = step; }
  CachingAllocator& allocator() { return *dispatcher_.context().allocator; }
  const Dispatcher& dispatcher() const { return dispatcher_; }

 private:
  StatusOr<std::vector<Tensor>> RunOp(const OpDef& op, const std::vector<Tensor>& in, Attrs attrs);
  StatusOr<std::vector<Tensor>> Expand(const OpDef& op, const std::vector<Tensor>& in,
                                       const Attrs& attrs, bool records);

  Dispatcher dispatcher_;
  Tape tape_;
  StepState step_;
  int64_t next_key_ = 0;
};

}  // namespace weft
