// One block an image: its first thread draws where the image is cut out, then all threads write
// results in order and gather bytes, which lie in the cache after the first touch. Products and
// differences are rounded each, as on the CPU.
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/image/augmentation.h"

namespace weft {
namespace {

using cuda::LaunchError;
using cuda::StepNumber;
using cuda::StepOf;
using cuda::StreamOf;

constexpr int kThreads = 256;

// Channel and place of result `i` of an image.
struct Pixel {
  int c, y, x;
};
__device__ __forceinline__ Pixel PixelOf(const AugmentState& a, int i) {
  if (a.patch == 0) {
    const int row = i / a.width;
    return {row / a.height, row % a.height, i % a.width};
  }
  const int c = i % a.channels, inner = i / a.channels;
  const int px = inner % a.patch, column = inner / a.patch;
  const int py = column % a.patch, patch = column / a.patch;
  const int across = a.width / a.patch;
  return {c, patch / across * a.patch + py, patch % across * a.patch + px};
}

__global__ void __launch_bounds__(kThreads)
    AugmentImages(const uint8_t* __restrict__ images, float* __restrict__ out, const AugmentState a,
                  const uint64_t seed, const StepNumber step, const int64_t first_image) {
  __shared__ Cut drawn;
  __shared__ float scale[AugmentState::kMostChannels], shift[AugmentState::kMostChannels];
  const int64_t image = blockIdx.x;
  if (threadIdx.x < a.channels) {
    scale[threadIdx.x] = a.scale[threadIdx.x];
    shift[threadIdx.x] = a.shift[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    drawn = a.draws() ? DrawCut(seed, a.key, step.get(), first_image + image, a.padding, a.flip)
                      : Cut{};
  }
  __syncthreads();
  const Cut cut = drawn;
  const int size = a.channels * a.height * a.width;
  const uint8_t* const from = images + image * size;
  float* const to = out + image * size;
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const Pixel p = PixelOf(a, i);
    const int y = p.y + cut.top - a.padding;
    const int x = (cut.mirrored ? a.width - 1 - p.x : p.x) + cut.left - a.padding;
    const bool inside = y >= 0 && y < a.height && x >= 0 && x < a.width;
    const float byte = inside ? static_cast<float>(from[(p.c * a.height + y) * a.width + x]) : 0.0f;
    to[i] = __fsub_rn(__fmul_rn(byte, scale[p.c]), shift[p.c]);
  }
}

Bound BindAugment(const std::string&, const BindArgs& args) {
  const ArrayRef& in = args.in[0];
  if (!in.contiguous() || !args.out[0].contiguous()) return {.error = "takes contiguous operands"};
  if (in.shape[1] > AugmentState::kMostChannels) return {.error = "too many channels"};
  if (in.dtype != DType::kU8 || args.out[0].dtype != DType::kF32) {
    return {.error = "takes u8 images and gives f32"};
  }
  if (in.shape[0] > INT32_MAX || in.shape[1] * in.shape[2] * in.shape[3] > INT32_MAX / 2) {
    return {.error = "too many images, or too large ones"};
  }
  return {.state = std::make_shared<AugmentState>(AugmentStateOf(in.shape, *args.attrs))};
}

int LaunchAugment(const void* raw, const KernelArgs& args) {
  const AugmentState& a = *static_cast<const AugmentState*>(raw);
  if (a.images == 0) return 0;
  AugmentImages<<<static_cast<unsigned>(a.images), kThreads, 0, StreamOf(args)>>>(
      args.in[0].as<const uint8_t>(), args.out[0].as<float>(), a, args.step.seed, StepOf(args),
      args.step.first_row);
  return LaunchError();
}

}  // namespace

void RegisterImageCuda(KernelTable* table) {
  table->Add("augment_images", DeviceKind::kCuda, {nullptr, BindAugment, LaunchAugment});
}

}  // namespace weft
