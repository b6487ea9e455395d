#include "worker/core/core.h"

#include "worker/core/device/cpu_device.h"

namespace weft {

StatusOr<std::unique_ptr<Core>> Core::Open(const CoreOptions& options) {
  if (options.threads < 1 || options.threads > 1024) {
    return InvalidArgument("threads is ", options.threads, ", wants 1 to 1024");
  }
  if (options.memory_cap_bytes < 1) {
    return InvalidArgument("memory_cap_bytes is ", options.memory_cap_bytes, ", wants at least 1");
  }
  std::unique_ptr<Core> core(new Core);
  core->tiles_ = MakeThreadPool(options.threads);
  core->allocator_ = CachingAllocator::Create(MakeCpuSource(), {options.memory_cap_bytes});
  core->trace_ = std::make_shared<TraceRing>();
  core->emitter_ = core->NewEmitter(options.seed);
  return core;
}

std::unique_ptr<EagerEmitter> Core::NewEmitter(uint64_t seed) {
  DispatchContext context;
  context.ops = &BuiltinOpSet();
  context.kernels = &BuiltinKernels();
  context.allocator = allocator_;
  context.tiles = tiles_.get();
  context.trace = trace_;
  return std::make_unique<EagerEmitter>(std::move(context), seed);
}

}  // namespace weft
