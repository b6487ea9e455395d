// Dispatcher: runs one op on tensors: validates through the op's inference, resolves aliases, makes
// operands contiguous where the kernel wants that, binds the kernel (kept in a small cache), gets
// results and scratch from the allocator, launches. Knows nothing of gradients and of composite
// ops: that is the emitter's.
//
// Owns the bind cache and references to allocator and trace. Used from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "fabric/base/status.h"
#include "fabric/opset/opset.h"
#include "worker/core/alloc/caching_allocator.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/dispatch/trace.h"
#include "worker/core/tensor/tensor.h"

namespace weft {

// What running ops needs. Op set, kernels and tiles outlive whoever is made with it.
struct DispatchContext {
  const OpSet* ops = nullptr;
  const KernelTable* kernels = nullptr;
  std::shared_ptr<CachingAllocator> allocator;  // its device is where ops run
  TileRunner* tiles = nullptr;                  // CPU
  StreamTag stream;
  std::shared_ptr<TraceRing> trace;  // null: none
};

class Dispatcher {
 public:
  explicit Dispatcher(DispatchContext context) : context_(std::move(context)) {}

  // InvalidArgument: operands or attributes do not fit (the message names op and shapes).
  // Unimplemented: no kernel for this device. ResourceExhausted: no memory.
  StatusOr<std::vector<Tensor>> Run(const OpDef& op, const std::vector<Tensor>& in,
                                    const Attrs& attrs, const StepState& step);

  const DispatchContext& context() const { return context_; }
  size_t bound_count() const { return bound_.size(); }

 private:
  // What a call needs that does not depend on its bytes.
  struct Prepared {
    std::vector<TensorMeta> out;
    const Kernel* kernel = nullptr;  // null: a view
    Bound bound;
  };

  StatusOr<std::shared_ptr<const Prepared>> Prepare(const OpDef& op, const std::vector<Tensor>& in,
                                                    const Attrs& attrs);
  StatusOr<Prepared> BindKernel(const OpDef& op, const std::vector<Tensor>& in, const Attrs& attrs,
                                std::vector<TensorMeta> out);
  Status Launch(const OpDef& op, const Prepared& prepared, const std::vector<Tensor>& in,
                const std::vector<Tensor>& out, const StepState& step);
  StatusOr<std::vector<Tensor>> RunView(const OpDef& op, const std::vector<TensorMeta>& out,
                                        const std::vector<Tensor>& in, const Attrs& attrs);
  StatusOr<Tensor> Contiguous(const Tensor& tensor);
  StatusOr<std::vector<Tensor>> Operands(const OpDef& op, const std::vector<Tensor>& in);
  StatusOr<std::vector<Tensor>> Results(const OpDef& op, const std::vector<TensorMeta>& metas,
                                        const std::vector<Tensor>& in);

  DispatchContext context_;
  absl::flat_hash_map<std::string, std::shared_ptr<const Prepared>> bound_;
};

}  // namespace weft
