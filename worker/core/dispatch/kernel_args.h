// The contract between a kernel and whoever runs it, in three phases:
//   Candidates: what could run for these operands; a plan's numerics section names one;
//   Bind:       at prepare: descriptors, tables, scratch size;
//   Launch:     in the step: array refs, scratch, stream; no allocation, no lookup by name.
// Standard library only: .cc and .cu kernel files include this, array_ref.h and device headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fabric/base/array_ref.h"
#include "fabric/base/stream.h"
#include "fabric/opset/attrs.h"

namespace weft {

// Runs the tiles of a CPU kernel. How work is cut into tiles is the kernel's and depends on shapes
// only; which thread takes which tile is free, so a tile must write only its own results: bits then
// never depend on the number of threads.
class TileRunner {
 public:
  virtual ~TileRunner() = default;
  virtual int threads() const = 0;

  // Calls body(tile, thread) for each tile in [0, tiles), thread in [0, threads()); returns when
  // all are done.
  template <typename Body>
  void For(int64_t tiles, Body&& body) {
    using Raw = std::remove_reference_t<Body>;
    Run(
        tiles,
        [](void* context, int64_t tile, int thread) {
          (*static_cast<Raw*>(context))(tile, thread);
        },
        const_cast<std::remove_const_t<Raw>*>(&body));
  }

 protected:
  using RawBody = void (*)(void* context, int64_t tile, int thread);
  virtual void Run(int64_t tiles, RawBody body, void* context) = 0;
};

// What random numbers are keyed by, beside the op's `key` attribute and the element.
struct StepState {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_row = 0;  // global number, within the step's batch, of row 0 of the operands
};

struct KernelArgs {
  const ArrayRef* in = nullptr;
  int in_count = 0;
  const ArrayRef* out = nullptr;  // in-place ops: the same bytes as the inputs they write
  int out_count = 0;
  void* scratch = nullptr;  // 64-byte aligned (256 on CUDA), as many bytes as Bind asked for
  StreamTag stream;
  TileRunner* tiles = nullptr;  // CPU only
  StepState step;
  // Devices: where the running step's number is, for work that is recorded once and replayed; null:
  // step.step holds. On the same device, while this word is not 0, ops that write their inputs in
  // place leave them alone; null: there is none.
  const int64_t* device_step = nullptr;
  const int32_t* gate = nullptr;
};

struct BindArgs {
  const ArrayRef* in = nullptr;  // data is null: dtype, shape and strides only
  int in_count = 0;
  const ArrayRef* out = nullptr;
  int out_count = 0;
  const Attrs* attrs = nullptr;
  int threads = 1;  // CPU: how many threads may run tiles at once (sizes scratch, nothing else)
};

struct Bound {
  std::shared_ptr<const void> state = nullptr;
  int64_t scratch_bytes = 0;
  std::string error = {};  // not empty: these operands cannot run, and why
};

struct Kernel {
  // Null: one candidate, "default".
  std::vector<std::string> (*candidates)(const BindArgs& args) = nullptr;
  Bound (*bind)(const std::string& candidate,
                const BindArgs& args) = nullptr;  // null: no state, no scratch
  // 0, or the device's error number (cudaError_t). CPU kernels cannot fail.
  int (*launch)(const void* state, const KernelArgs& args) = nullptr;
  // Whether it takes bf16 operands.
  bool narrow = false;
};

// Not empty: why `kernel` cannot take operands of these dtypes.
inline std::string RefusedDType(const Kernel& kernel, const ArrayRef* operands, int count) {
  for (int i = 0; i < count && !kernel.narrow; ++i) {
    if (operands[i].dtype == DType::kBF16) return "has no bf16 kernel on this device";
  }
  return "";
}

}  // namespace weft
