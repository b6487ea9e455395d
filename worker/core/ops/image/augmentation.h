// What the kernels of augment_images share on both devices: what binding decides, and where an
// image is cut out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/base/philox.h"
#include "fabric/base/shape.h"
#include "fabric/opset/attrs.h"

namespace weft {

struct AugmentState {
  static constexpr int kMostChannels = 16;

  int64_t images = 0;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  int32_t patch = 0;    // 0: whole images
  int32_t padding = 0;  // 0: not cut
  bool flip = false;
  uint64_t key = 0;
  // y = byte * scale - shift, product and difference rounded each.
  float scale[kMostChannels] = {};
  float shift[kMostChannels] = {};

  constexpr bool draws() const { return padding > 0 || flip; }
};

// Of operands that inference has accepted.
inline AugmentState AugmentStateOf(const Shape& images, const Attrs& attrs) {
  constexpr float kUnit = 10000, kLargest = 255;
  AugmentState s;
  s.images = images[0];
  s.channels = static_cast<int32_t>(images[1]);
  s.height = static_cast<int32_t>(images[2]);
  s.width = static_cast<int32_t>(images[3]);
  s.patch = static_cast<int32_t>(attrs.GetInt("patch"));
  s.padding = static_cast<int32_t>(attrs.GetInt("padding"));
  s.flip = attrs.GetBool("flip");
  s.key = static_cast<uint64_t>(attrs.GetInt("key"));
  const std::vector<int64_t> mean = attrs.GetInts("mean");
  const std::vector<int64_t> deviation = attrs.GetInts("std");
  for (size_t c = 0; c < mean.size() && c < AugmentState::kMostChannels; ++c) {
    const float m = static_cast<float>(mean[c]) / kUnit;
    const float d = static_cast<float>(deviation[c]) / kUnit;
    s.scale[c] = 1 / (kLargest * d);
    s.shift[c] = m / d;
  }
  return s;
}

// Where an image's upper left corner lies in its bordered self, and whether it is mirrored.
struct Cut {
  int32_t top = 0;
  int32_t left = 0;
  bool mirrored = false;
};

// Of the batch's image `image`: a pure function of (seed, key, step, image).
constexpr Cut DrawCut(uint64_t seed, uint64_t key, int64_t step, int64_t image, int32_t padding,
                      bool flip) {
  const PhiloxBlock stream = Philox(seed, key, static_cast<uint64_t>(step));
  const PhiloxBlock draw =
      Philox(stream.word[0] | uint64_t{stream.word[1]} << 32,
             stream.word[2] | uint64_t{stream.word[3]} << 32, static_cast<uint64_t>(image));
  const uint64_t places = 2 * static_cast<uint64_t>(padding) + 1;
  return {static_cast<int32_t>((draw.word[0] * places) >> 32),
          static_cast<int32_t>((draw.word[1] * places) >> 32), flip && draw.word[2] >> 31 != 0};
}

}  // namespace weft
