// Images one tile each. A table of 256 results a channel makes the inner loops look-ups, so no
// instruction set can round differently.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/image/augmentation.h"

namespace weft {
namespace {

constexpr int kBytes = 256;

struct CpuState {
  AugmentState augment;
  std::vector<float> table;  // [channels][kBytes]
};

Bound BindAugment(const std::string&, const BindArgs& args) {
  const ArrayRef& in = args.in[0];
  if (!in.contiguous() || !args.out[0].contiguous()) return {.error = "takes contiguous operands"};
  if (in.shape[1] > AugmentState::kMostChannels) return {.error = "too many channels"};
  if (in.dtype != DType::kU8 || args.out[0].dtype != DType::kF32) {
    return {.error = "takes u8 images and gives f32"};
  }
  auto s = std::make_shared<CpuState>();
  s->augment = AugmentStateOf(in.shape, *args.attrs);
  for (int c = 0; c < s->augment.channels; ++c) {
    for (int byte = 0; byte < kBytes; ++byte) {
      s->table.push_back(static_cast<float>(byte) * s->augment.scale[c] - s->augment.shift[c]);
    }
  }
  return {.state = std::move(s)};
}

// Pixels [begin, end) of row `y` of a cut channel: pixel x goes to `to[(x - begin) * step]`.
void WriteRow(const AugmentState& a, const Cut& cut, const uint8_t* channel, const float* table,
              int32_t y, int32_t begin, int32_t end, float* to, int64_t step) {
  const int32_t from_y = y + cut.top - a.padding;
  const bool inside = from_y >= 0 && from_y < a.height;
  const uint8_t* const row = channel + static_cast<int64_t>(inside ? from_y : 0) * a.width;
  for (int32_t x = begin; x < end; ++x, to += step) {
    const int32_t from_x = (cut.mirrored ? a.width - 1 - x : x) + cut.left - a.padding;
    const bool pixel = inside && from_x >= 0 && from_x < a.width;
    *to = table[pixel ? row[from_x] : 0];
  }
}

// Channel `c` of an image, whose results begin at `out`.
void WriteChannel(const CpuState& s, const Cut& cut, const uint8_t* image, int32_t c, float* out) {
  const AugmentState& a = s.augment;
  const int64_t plane = int64_t{a.height} * a.width;
  const uint8_t* const channel = image + c * plane;
  const float* const table = s.table.data() + c * kBytes;
  for (int32_t y = 0; y < a.height; ++y) {
    if (a.patch == 0) {
      WriteRow(a, cut, channel, table, y, 0, a.width, out + c * plane + int64_t{y} * a.width, 1);
      continue;
    }
    const int64_t p = a.patch, features = p * p * a.channels;
    float* to = out + y / p * (a.width / p) * features + y % p * p * a.channels + c;
    for (int32_t x = 0; x < a.width; x += a.patch, to += features) {
      WriteRow(a, cut, channel, table, y, x, x + a.patch, to, a.channels);
    }
  }
}

int LaunchAugment(const void* raw, const KernelArgs& args) {
  const CpuState& s = *static_cast<const CpuState*>(raw);
  const AugmentState& a = s.augment;
  const uint8_t* const images = args.in[0].as<const uint8_t>();
  float* const out = args.out[0].as<float>();
  const int64_t size = int64_t{a.channels} * a.height * a.width;
  args.tiles->For(a.images, [&](int64_t i, int) {
    const Cut cut = a.draws() ? DrawCut(args.step.seed, a.key, args.step.step,
                                        args.step.first_row + i, a.padding, a.flip)
                              : Cut{};
    for (int32_t c = 0; c < a.channels; ++c) {
      WriteChannel(s, cut, images + i * size, c, out + i * size);
    }
  });
  return 0;
}

}  // namespace

void RegisterImageCpu(KernelTable* table) {
  table->Add("augment_images", DeviceKind::kCpu, {nullptr, BindAugment, LaunchAugment});
}

}  // namespace weft
