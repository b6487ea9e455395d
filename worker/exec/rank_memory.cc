#include "worker/exec/rank_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace weft {

void* SpaceBases::Find(Space space, int32_t index) const {
  switch (space) {
    case Space::kParam:
      return param;
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

StatusOr<Buffer> AllocateZeroed(int64_t bytes) {
  if (bytes <= 0) bytes = 1;
  const size_t size = static_cast<size_t>(bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted("cannot allocate ", bytes,
                             " bytes of host memory; use fewer samples a lane (more "
                             "lanes), a smaller model, or a node with more memory");
  }
  constexpr size_t kHugePage = size_t{2} << 20;
  if (size >= kHugePage)
    madvise(data, size, MADV_HUGEPAGE);  // advice only: failure changes nothing
  return Buffer(data, size, DeviceId{}, [](void* p, size_t n) { munmap(p, n); });
}

StatusOr<RankMemory> RankMemory::Allocate(const Program& program, int grad_buffers,
                                          int64_t scratch_bytes) {
  RankMemory memory;
  const auto allocate = [&memory](int64_t bytes, Buffer* into) -> Status {
    ASSIGN_OR_RETURN(*into, AllocateZeroed(bytes));
    memory.total_bytes_ += bytes;
    return absl::OkStatus();
  };
  memory.flat_elements_ = program.flat_elements;
  const int64_t flat_bytes = program.flat_elements * static_cast<int64_t>(sizeof(float));
  RETURN_IF_ERROR(allocate(flat_bytes, &memory.param_));
  memory.states_.resize(program.states.size());
  for (Buffer& state : memory.states_) RETURN_IF_ERROR(allocate(flat_bytes, &state));
  memory.grads_.resize(static_cast<size_t>(grad_buffers));
  const int64_t grad_bytes = GradElements(program) * static_cast<int64_t>(sizeof(float));
  for (Buffer& grad : memory.grads_) RETURN_IF_ERROR(allocate(grad_bytes, &grad));
  const auto allocate_slots = [&](const std::vector<InputSlot>& slots,
                                  std::vector<Buffer>* into) -> Status {
    into->resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i)
      RETURN_IF_ERROR(allocate(slots[i].meta.bytes(), &(*into)[i]));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(allocate_slots(program.inputs, &memory.train_inputs_));
  RETURN_IF_ERROR(allocate_slots(program.eval_inputs, &memory.eval_inputs_));
  RETURN_IF_ERROR(allocate_slots(program.predict_inputs, &memory.predict_inputs_));
  const int64_t arena = std::max({program.train.arena_bytes, program.update.arena_bytes,
                                  program.evaluate.arena_bytes, program.predict.arena_bytes});
  RETURN_IF_ERROR(allocate(arena, &memory.arena_));
  RETURN_IF_ERROR(allocate(scratch_bytes, &memory.scratch_));
  RETURN_IF_ERROR(allocate(sizeof(int64_t), &memory.step_));
  return memory;
}

SpaceBases RankMemory::Bases(int grad_buffer, Slots slots) const {
  SpaceBases bases;
  bases.param = param();
  bases.grad = grad(grad_buffer);
  bases.stats = grad(grad_buffer) + flat_elements_;
  bases.arena = arena_.data();
  bases.step = step();
  for (const Buffer& state : states_) bases.states.push_back(state.data());
  const std::vector<Buffer>& inputs = slots == Slots::kTrain  ? train_inputs_
                                      : slots == Slots::kEval ? eval_inputs_
                                                              : predict_inputs_;
  for (const Buffer& input : inputs) bases.inputs.push_back(input.data());
  return bases;
}

}  // namespace weft
