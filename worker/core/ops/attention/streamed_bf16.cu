// streamed_heads.cuh in one arithmetic.
#include "worker/core/ops/attention/streamed_heads.cuh"

namespace weft::attention {

bool StreamedHeadsFit(int64_t width) { return width == 32 || width == 64 || width == 128; }

int StreamedBf16Forward(const AttentionCall& call, cudaStream_t stream) {
  return StreamForwardOf<Narrow>(call, stream);
}

int StreamedBf16Backward(const AttentionCall& call, cudaStream_t stream) {
  return StreamBackwardOf<Narrow>(call, stream);
}

}  // namespace weft::attention
