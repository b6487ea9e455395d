// streamed_heads.cuh in one arithmetic.
#include "worker/core/ops/attention/streamed_heads.cuh"

namespace weft::attention {

int StreamedTf32Forward(const AttentionCall& call, cudaStream_t stream) {
  return StreamForwardOf<Tf32>(call, stream);
}

int StreamedTf32Backward(const AttentionCall& call, cudaStream_t stream) {
  return StreamBackwardOf<Tf32>(call, stream);
}

}  // namespace weft::attention
