// The buffers of one rank, each one allocation on its device: parameters, optimizer states,
// gradient buffers of the lane tree, inputs, the arena that sections share, scratch. Owned by the
// step runner; addresses never change.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/buffer.h"
#include "fabric/base/status.h"
#include "fabric/graph/program.h"
#include "worker/core/device/device.h"

namespace weft {

// Where each space of a section's operands begins. A run hands these over, since the gradients of
// each lane go into another buffer.
struct SpaceBases {
  void* param = nullptr;
  void* low = nullptr;
  void* grad = nullptr;
  void* stats = nullptr;
  void* arena = nullptr;
  int64_t* step = nullptr;
  std::vector<void*> states;
  std::vector<void*> inputs;

  void* Find(Space space, int32_t index) const;
};

// Zeroed bytes of `device`, which outlives them. ResourceExhausted names the size.
StatusOr<Buffer> AllocateZeroed(Device* device, int64_t bytes);

// Floats of one gradient buffer: the flat gradients, the stats, and one more that carries a stop
// request.
inline int64_t GradElements(const Program& program) {
  return program.flat_elements + static_cast<int64_t>(program.stats.size()) + 1;
}

class RankMemory {
 public:
  struct Sizes {
    int grad_buffers = 1;       // of GradElements each
    int train_input_sets = 1;   // of all training input slots
    int64_t scratch_bytes = 0;  // as the bound sections ask
  };
  static StatusOr<RankMemory> Allocate(Device* device, const Program& program, const Sizes& sizes);

  float* param() const { return static_cast<float*>(param_.data()); }
  float* state(size_t i) const { return static_cast<float*>(states_[i].data()); }
  size_t states() const { return states_.size(); }
  float* grad(int i) const { return static_cast<float*>(grads_[static_cast<size_t>(i)].data()); }
  void* scratch() const { return scratch_.data(); }
  int64_t* step() const { return static_cast<int64_t*>(step_.data()); }
  int64_t flat_elements() const { return flat_elements_; }
  int64_t total_bytes() const { return total_bytes_; }
  int64_t arena_bytes() const { return static_cast<int64_t>(arena_.bytes()); }
  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.bytes()); }

  // Bases with gradients and stats in gradient buffer `grad_buffer`, and inputs of `slots`; of the
  // training inputs, set `input_set`.
  enum class Slots { kTrain, kEval, kPredict };
  SpaceBases Bases(int grad_buffer, Slots slots, int input_set = 0) const;

 private:
  int64_t flat_elements_ = 0;
  Buffer param_, low_, arena_, scratch_, step_;
  std::vector<Buffer> states_, grads_, eval_inputs_, predict_inputs_;
  std::vector<std::vector<Buffer>> train_inputs_;  // by set
  int64_t total_bytes_ = 0;
};

}  // namespace weft
