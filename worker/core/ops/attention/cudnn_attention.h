// Attention by cuDNN: bf16, no rotation, long contexts. Standard library and CUDA only.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda_runtime.h>

#include "worker/core/ops/attention/paths.h"

namespace weft::attention {

// cuDNN's plan for one shape, made once a process and shared by all calls of that shape.
class CudnnAttention {
 public:
  // For the shape of `call`; nullptr where cuDNN has nothing for it, or was not built in. The
  // backward pass is the deterministic one.
  static std::shared_ptr<const CudnnAttention> Forward(const AttentionCall& call);
  static std::shared_ptr<const CudnnAttention> Backward(const AttentionCall& call);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // 0 or an error number (cudaError_t).
  int Launch(const AttentionCall& call, void* workspace, cudaStream_t stream) const;

 private:
  struct Plan;
  explicit CudnnAttention(std::unique_ptr<Plan> plan);
  static std::shared_ptr<const CudnnAttention> Find(const AttentionCall& call, bool backward);

  std::unique_ptr<Plan> plan_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace weft::attention
