// Program: what one role executes, fixed before anything runs: flat lists of kernel calls whose
// operands are offsets into a few buffers. Made by the planner, bound to kernels and memory by
// worker/exec. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/tensor_meta.h"
#include "fabric/graph/graph.h"
#include "fabric/opset/attrs.h"

namespace weft {

// Where an operand's bytes are.
enum class Space : uint8_t {
  kParam = 0,  // flat FP32 parameters
  kGrad =
      1,  // flat FP32 gradients of one lane (train) or of the whole batch (update); same offsets
  kState = 2,  // optimizer states, each flat with the parameters' offsets; `index` says which
  kStats = 3,  // a few FP32 scalars a lane: Program::stats in order
  kInput = 4,  // `index` says which input slot
  kArena = 5,  // activations and temporaries of the section, by liveness
  kStep = 6,   // one i64 scalar: the number of the running step, from 0
  kLow = 7,    // flat BF16 copy of the parameters, same element offsets; with Program::low_copy
};

struct Operand {
  Space space = Space::kArena;
  int32_t index = 0;
  int64_t offset = 0;  // bytes from the buffer's start
  TensorMeta meta;
  Strides strides;  // elements
};

struct Call {
  std::string op;
  std::string
      kernel;        // the candidate that the numerics section chose; "default" where there is one
  std::string node;  // name for errors and traces
  Attrs attrs;
  std::vector<Operand> in;
  std::vector<Operand> out;
};

struct Section {
  std::vector<Call> calls;
  int64_t arena_bytes = 0;
};

struct ParameterSlot {
  std::string name;
  Shape shape;
  int64_t offset = 0;  // elements into the flat buffers; a multiple of kFlatAlign
  InitRule init;
  bool decay = false;
};

// Parameters start at multiples of this many elements; the gaps are zero and stay so.
inline constexpr int64_t kFlatAlign = 64;

struct InputSlot {
  std::string name;
  TensorMeta meta;  // of one lane
};

// What products and activations are computed in; parameters, gradients of parameters, optimizer
// states and sums are FP32 always.
enum class ComputePrecision : uint8_t {
  kFp32 = 0,
  kTf32 = 1,  // FP32 everywhere, but products may round their operands to TF32
  kBf16 = 2,  // products and activations in BF16, out of a BF16 copy of the parameters
};
inline const char* NameOf(ComputePrecision precision) {
  constexpr const char* kNames[] = {"fp32", "tf32", "bf16"};
  return kNames[static_cast<int>(precision)];
}

struct Program {
  std::vector<ParameterSlot> parameters;
  int64_t flat_elements = 0;        // of each flat buffer
  std::vector<std::string> states;  // e.g. "m", "v"; empty for plain SGD
  std::vector<std::string> stats;   // "loss_sum", "count", then optional ones
  std::vector<InputSlot> inputs;    // of train, in lane size
  std::vector<InputSlot> eval_inputs;
  std::vector<InputSlot> predict_inputs;
  Section
      train;  // one lane: forward and backward into kGrad and kStats, all of which it overwrites
  Section update;         // kGrad and kStats hold the batch's sums; applies one optimizer step
  Section evaluate;       // one lane of evaluation: kStats only
  Section predict;        // one sample: `logits`; may be empty
  Operand logits;         // [1, context, vocab] in predict's arena
  bool low_copy = false;  // kLow exists: `refresh` makes it, `update` keeps it up to date
  Section refresh;        // kParam -> kLow; to be run whenever parameters came from elsewhere
                          // (initialization, restore), before any other section, and as of the
                          // step before the first: what that step's update left
};

}  // namespace weft
