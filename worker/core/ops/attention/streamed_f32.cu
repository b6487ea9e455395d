// streamed_heads.cuh in one arithmetic.
#include "worker/core/ops/attention/streamed_heads.cuh"

namespace weft::attention {

int StreamedF32Forward(const AttentionCall& call, cudaStream_t stream) {
  return StreamForwardOf<Full>(call, stream);
}

int StreamedF32Backward(const AttentionCall& call, cudaStream_t stream) {
  return StreamBackwardOf<Full>(call, stream);
}

}  // namespace weft::attention
