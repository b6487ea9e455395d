// Losses of rows of logits, and their gradients. Private to the family.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "fabric/base/dtype.h"

namespace weft {

// What one row adds.
struct RowSums {
  float loss, count, correct;
};

struct LossRows {
  DType dtype;         // f32 or bf16
  const void* logits;  // [rows, classes]
  const int32_t* targets;
  float* lse;     // [rows]; null: nobody asks
  void* dlogits;  // of the sum of losses; may be the logits; null: no gradient
  RowSums* sums;  // [rows]
  int64_t rows;
  int classes;
};

struct GradRows {
  DType dtype;
  const void* logits;
  const int32_t* targets;
  const float* lse;
  const float* dloss;  // scalar
  void* dlogits;
  int64_t rows;
  int classes;
};

// Before the first launch on rows of so many classes. 0 or an error number.
int PrepareLossRows(DType dtype, int classes);
int LaunchLossRows(const LossRows& rows, cudaStream_t stream);
int LaunchGradRows(const GradRows& rows, cudaStream_t stream);
// Sums in a fixed order, by one block.
int LaunchRowSums(const RowSums* sums, int64_t rows, float* loss, float* count, float* correct,
                  cudaStream_t stream);

}  // namespace weft
