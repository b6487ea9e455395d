#include "worker/exec/rank_memory.h"

#include <algorithm>

namespace weft {

void* SpaceBases::Find(Space space, int32_t index) const {
  switch (space) {
    case Space::kParam:
      return param;
    case Space::kLow:
      return low;
    case Space::kGrad:
      return grad;
    case Space::kStats:
      return stats;
    case Space::kArena:
      return arena;
    case Space::kStep:
      return step;
    case Space::kState:
      return states[static_cast<size_t>(index)];
    case Space::kInput:
      return inputs[static_cast<size_t>(index)];
  }
  return nullptr;
}

StatusOr<Buffer> AllocateZeroed(Device* device, int64_t bytes) {
  if (bytes <= 0) bytes = 1;
  const StatusOr<void*> data = device->Allocate(bytes);
  if (!data.ok()) {
    return Annotate(data.status(),
                    "use fewer samples a lane (more lanes), a smaller model, or a device with more "
                    "memory");
  }
  Buffer buffer(*data, static_cast<size_t>(bytes), device->id(),
                [device](void* p, size_t) { device->Free(p); });
  RETURN_IF_ERROR(device->Fill(*data, 0, bytes, StreamTag{}));
  return buffer;
}

StatusOr<RankMemory> RankMemory::Allocate(Device* device, const Program& program,
                                          const Sizes& sizes) {
  RankMemory memory;
  const auto allocate = [&](int64_t bytes, Buffer* into) -> Status {
    ASSIGN_OR_RETURN(*into, AllocateZeroed(device, bytes));
    memory.total_bytes_ += bytes;
    return absl::OkStatus();
  };
  memory.flat_elements_ = program.flat_elements;
  const int64_t flat_bytes = program.flat_elements * static_cast<int64_t>(sizeof(float));
  RETURN_IF_ERROR(allocate(flat_bytes, &memory.param_));
  if (program.low_copy) {
    RETURN_IF_ERROR(
        allocate(program.flat_elements * static_cast<int64_t>(SizeOf(DType::kBF16)), &memory.low_));
  }
  memory.states_.resize(program.states.size());
  for (Buffer& state : memory.states_) RETURN_IF_ERROR(allocate(flat_bytes, &state));
  memory.grads_.resize(static_cast<size_t>(sizes.grad_buffers));
  const int64_t grad_bytes = GradElements(program) * static_cast<int64_t>(sizeof(float));
  for (Buffer& grad : memory.grads_) RETURN_IF_ERROR(allocate(grad_bytes, &grad));
  const auto allocate_slots = [&](const std::vector<InputSlot>& slots,
                                  std::vector<Buffer>* into) -> Status {
    into->resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i)
      RETURN_IF_ERROR(allocate(slots[i].meta.bytes(), &(*into)[i]));
    return absl::OkStatus();
  };
  memory.train_inputs_.resize(static_cast<size_t>(sizes.train_input_sets));
  for (auto& set : memory.train_inputs_) RETURN_IF_ERROR(allocate_slots(program.inputs, &set));
  RETURN_IF_ERROR(allocate_slots(program.eval_inputs, &memory.eval_inputs_));
  RETURN_IF_ERROR(allocate_slots(program.predict_inputs, &memory.predict_inputs_));
  const int64_t arena = std::max({program.train.arena_bytes, program.update.arena_bytes,
                                  program.evaluate.arena_bytes, program.predict.arena_bytes});
  RETURN_IF_ERROR(allocate(arena, &memory.arena_));
  RETURN_IF_ERROR(allocate(sizes.scratch_bytes, &memory.scratch_));
  RETURN_IF_ERROR(allocate(sizeof(int64_t), &memory.step_));
  RETURN_IF_ERROR(device->Synchronize(StreamTag{}));
  return memory;
}

SpaceBases RankMemory::Bases(int grad_buffer, Slots slots, int input_set) const {
  SpaceBases bases;
  bases.param = param();
  bases.low = low_.data();
  bases.grad = grad(grad_buffer);
  bases.stats = grad(grad_buffer) + flat_elements_;
  bases.arena = arena_.data();
  bases.step = step();
  for (const Buffer& state : states_) bases.states.push_back(state.data());
  const std::vector<Buffer>& inputs = slots == Slots::kTrain
                                          ? train_inputs_[static_cast<size_t>(input_set)]
                                      : slots == Slots::kEval ? eval_inputs_
                                                              : predict_inputs_;
  for (const Buffer& input : inputs) bases.inputs.push_back(input.data());
  return bases;
}

}  // namespace weft
