// Writes text with a trained model: the prediction section, token by token.
#pragma once

#include <atomic>
#include <string>

#include "fabric/base/status.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/exec/exec_spec.h"

namespace weft {

// Loads spec.sample->checkpoint and continues its prompt. Draws are keyed by (seed, position), so
// the same request gives the same text. Ends early with Aborted when `stop` is set.
StatusOr<std::string> SampleText(const ExecSpec& spec, const KernelTable& kernels,
                                 TileRunner* tiles, const std::atomic<bool>& stop);

// The token drawn from `logits`: softmax(logits / temperature) over the `top_k` largest (0: all),
// by inverse transform at `uniform` in [0, 1). Temperature 0: the likeliest, the lowest id on ties.
int32_t DrawToken(absl::Span<const float> logits, double temperature, int64_t top_k,
                  double uniform);

}  // namespace weft
