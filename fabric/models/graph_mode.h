// What a model family's graph is for.
#pragma once

#include <cstdint>

namespace weft {

enum class GraphMode : uint8_t {
  // Outputs loss_sum, count and correct of an input "targets" (i32; -1: not counted).
  kTrain,
  // As kTrain, without what only training does: dropout, augmentation.
  kEvaluate,
  // Output logits; no targets.
  kPredict,
};

}  // namespace weft
