// Images as the first layer of a model wants them.
#include <cstdint>
#include <utility>
#include <vector>

#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

constexpr int64_t kMostChannels = 16;
constexpr int64_t kMostPixels = int64_t{1} << 15;  // a side: what is cut out fits in 32 bits

Status CheckMoments(const Attrs& attrs, const char* name, int64_t channels, int64_t least) {
  const std::vector<int64_t> values = attrs.GetInts(name);
  if (static_cast<int64_t>(values.size()) != channels) {
    return InvalidArgument(name, " has ", values.size(), " values, wants one for each of ",
                           channels, " channels");
  }
  for (const int64_t value : values) {
    if (value < least || value > 1'000'000) {
      return InvalidArgument(name, " has ", value, ", wants ", least, " to 1000000");
    }
  }
  return absl::OkStatus();
}

StatusOr<Metas> InferAugment(const InferArgs& a) {
  const TensorMeta& images = a.in[0];
  if (images.dtype != DType::kU8 || images.shape.rank() != 4) {
    return InvalidArgument("'images' is ", ToString(images),
                           ", wants u8[images, channels, height, width]");
  }
  const int64_t rows = images.shape[0], channels = images.shape[1], height = images.shape[2],
                width = images.shape[3];
  if (channels < 1 || channels > kMostChannels) {
    return InvalidArgument("'images' has ", channels, " channels, wants 1 to ", kMostChannels);
  }
  if (height < 1 || width < 1 || height > kMostPixels || width > kMostPixels) {
    return InvalidArgument("'images' has ", height, " x ", width, " pixels, wants 1 to ",
                           kMostPixels, " a side");
  }
  RETURN_IF_ERROR(CheckMoments(a.attrs, "mean", channels, 0));
  RETURN_IF_ERROR(CheckMoments(a.attrs, "std", channels, 1));
  const int64_t padding = a.attrs.GetInt("padding");
  if (padding < 0 || padding > kMostPixels) {
    return InvalidArgument("padding is ", padding, ", wants 0 to ", kMostPixels);
  }
  const int64_t patch = a.attrs.GetInt("patch");
  if (patch == 0) return Metas{{DType::kF32, images.shape}};
  if (patch < 0 || height % patch != 0 || width % patch != 0) {
    return InvalidArgument("patch ", patch, " does not divide images of ", height, " x ", width);
  }
  ASSIGN_OR_RETURN(const Shape shape,
                   CheckedShape(DType::kF32, {rows, height / patch * (width / patch),
                                              patch * patch * channels}));
  return Metas{{DType::kF32, shape}};
}

}  // namespace

void AddImageOps(OpSet* set) {
  OpDef op{.name = "augment_images",
           .doc =
               "y = (byte / 255 - mean) / std of a window that is drawn for each image from it and "
               "a border of zeros, mirrored for half of the images; cut into patches, each row by "
               "row, channels last, if wanted",
           .inputs = {"images"}};
  op.attrs = {
      {"mean", AttrType::kInts, true, "of each channel, in 1/10000 of the range 0 to 1"},
      {"std", AttrType::kInts, true, "standard deviation of each channel, in the same unit"},
      {"padding", AttrType::kInt, false, "width of the border in pixels; 0: images stay in place"},
      {"flip", AttrType::kBool, false, "whether half of the images are mirrored"},
      {"patch", AttrType::kInt, false,
       "pixels a side; the result is [images, patches, patch * "
       "patch * channels]; 0: the images' own shape"},
      {"key", AttrType::kInt, true, "which stream of random numbers"}};
  op.infer = InferAugment;
  op.differentiable = false;
  op.random = true;
  op.flops = [](const CostArgs& c) { return 2 * c.in[0].elements(); };
  set->Add(std::move(op));
}

}  // namespace weft
