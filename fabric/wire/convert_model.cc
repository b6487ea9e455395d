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

}  // namespace weft::wire
