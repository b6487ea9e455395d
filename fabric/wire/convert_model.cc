#include "fabric/wire/convert_model.h"

namespace weft::wire {

GptSpec FromProto(const v1::GptModel& model) {
  GptSpec spec;
  spec.layers = model.layers();
  spec.heads = model.heads();
  spec.dim = model.dim();
  spec.context = model.context();
  spec.vocab = model.vocab();
  if (model.position() == v1::POSITION_ROTARY) spec.position = GptSpec::Position::kRotary;
  if (model.norm() == v1::NORM_RMS) spec.norm = GptSpec::Norm::kRms;
  if (model.init() == v1::INIT_FAN_IN) spec.init = GptSpec::Init::kFanIn;
  if (model.has_tied()) spec.tied = model.tied();
  if (model.has_bias()) spec.bias = model.bias();
  if (model.has_init_scale()) spec.init_scale = model.init_scale();
  if (model.has_residual_scale()) spec.residual_scale = model.residual_scale();
  return spec;
}

VitSpec FromProto(const v1::VitModel& model, const v1::DataSpec& data) {
  VitSpec spec;
  spec.layers = model.layers();
  spec.heads = model.heads();
  spec.dim = model.dim();
  spec.image = model.image();
  if (model.patch() != 0) spec.patch = model.patch();
  spec.classes = model.classes();
  if (model.class_tokens() != 0) spec.class_tokens = model.class_tokens();
  if (model.norm() == v1::NORM_RMS) spec.norm = VitSpec::Norm::kRms;
  spec.qkv_bias = model.has_qkv_bias() ? model.qkv_bias() : spec.norm == VitSpec::Norm::kLayer;
  if (model.has_init_scale()) spec.init_scale = model.init_scale();
  if (!data.has_cifar10()) return spec;
  if (spec.image == 0) spec.image = kCifar10Side;
  if (spec.classes == 0) spec.classes = kCifar10Classes;
  // Of the 50,000 training images.
  spec.feed.mean = {4914, 4822, 4465};
  spec.feed.deviation = {2470, 2435, 2616};
  const bool augment = !data.cifar10().has_augment() || data.cifar10().augment();
  spec.feed.padding = augment ? 4 : 0;
  spec.feed.flip = augment;
  return spec;
}

}  // namespace weft::wire
