// The vision transformer family as graphs (Dosovitskiy et al.: "An image is worth 16x16 words",
// ICLR 2021, with any number of class tokens).
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/graph/graph.h"
#include "fabric/models/graph_mode.h"

namespace weft {

// How images come and what is done with their bytes first.
struct ImageFeed {
  int64_t channels = 3;
  // Of each channel, in 1/10000 of the range 0 to 1.
  std::vector<int64_t> mean = {};
  std::vector<int64_t> deviation = {};
  // In training only: cut out of a border this wide, half of them mirrored. 0 and false: as they
  // are.
  int64_t padding = 0;
  bool flip = false;
};

struct VitSpec {
  enum class Norm { kLayer, kRms };
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t image = 0;  // pixels a side
  int64_t patch = 4;  // pixels a side
  int64_t classes = 0;
  int64_t class_tokens = 1;
  Norm norm = Norm::kLayer;
  bool qkv_bias = true;
  double init_scale = 0.02;  // standard deviation of class tokens and positions
  ImageFeed feed = {};
};

// Inputs images u8 [rows, channels, image, image] (and targets i32 [rows]); logits f32 [rows,
// classes]. Linears and their biases start uniform in +-1 / sqrt(inputs), and all but qkv always
// have a bias. Parameters in this order: embed, class_tokens, positions (of class tokens, then of
// patches), h.<i> as in gpt.h, norm, head. InvalidArgument names the field that cannot be.
StatusOr<Graph> BuildVit(const VitSpec& spec, int64_t rows, GraphMode mode);

}  // namespace weft
