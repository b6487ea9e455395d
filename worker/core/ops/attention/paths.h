// The ways in which attention runs on CUDA. Each gives the same bits every time; cuda.cu chooses.
// Launchers return a cudaError_t.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "fabric/base/dtype.h"

namespace weft::attention {

// One call on a packed qkv [items, time, 3 * heads * width] and what goes with it.
struct AttentionCall {
  int64_t items = 0;
  int time = 0, heads = 0, width = 0;
  bool causal = false;
  double rotary_base = 0;  // 0: none
  const void* qkv = nullptr;
  void* y = nullptr;     // written by the forward pass
  float* lse = nullptr;  // the same
  const void* dy = nullptr;
  void* dqkv = nullptr;
  void* scratch = nullptr;  // on 256 bytes; what each way wants is below

  int64_t rows() const { return items * heads * time; }
};

// Any width up to 256, f32 or bf16, without tensor cores.
inline constexpr int kMostWidth = 256;
int64_t GeneralScratch(const AttentionCall& call, bool backward);
int GeneralForward(const AttentionCall& call, DType dtype, cudaStream_t stream);
int GeneralBackward(const AttentionCall& call, DType dtype, cudaStream_t stream);
// y = qkv rotated; `inverse`: back.
int Rotate(const AttentionCall& call, bool inverse, DType dtype, cudaStream_t stream);

// bf16 with whole heads in shared memory: one block does all of a head. Up to 256 positions, widths
// 32 and 64, pointers on 16 bytes.
bool WholeHeadsFit(int64_t time, int64_t width);
int WholeHeadsForward(const AttentionCall& call, cudaStream_t stream);
int WholeHeadsBackward(const AttentionCall& call, cudaStream_t stream);

// Any number of positions, widths 32, 64 and 128, pointers on 16 bytes, in one of three arithmetics
// (tiles.cuh).
bool StreamedHeadsFit(int64_t width);
int64_t StreamedScratch(const AttentionCall& call, DType dtype, bool backward);
int StreamedBf16Forward(const AttentionCall& call, cudaStream_t stream);
int StreamedBf16Backward(const AttentionCall& call, cudaStream_t stream);
int StreamedTf32Forward(const AttentionCall& call, cudaStream_t stream);
int StreamedTf32Backward(const AttentionCall& call, cudaStream_t stream);
int StreamedF32Forward(const AttentionCall& call, cudaStream_t stream);
int StreamedF32Backward(const AttentionCall& call, cudaStream_t stream);

}  // namespace weft::attention
