#include "worker/exec/sampler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "fabric/base/philox.h"
#include "fabric/ckpt/manifest.h"
#include "worker/exec/bound_section.h"
#include "worker/exec/rank_memory.h"
#include "worker/exec/train_state.h"

namespace weft {
namespace {

// The last `context` tokens at the window's start, the rest filled with token 0, which causal
// attention keeps from mattering. Returns the position of the last one.
int64_t FillWindow(const std::vector<int32_t>& ids, int64_t context, int32_t* window) {
  const int64_t have = std::min<int64_t>(context, static_cast<int64_t>(ids.size()));
  std::copy(ids.end() - have, ids.end(), window);
  std::fill(window + have, window + context, 0);
  return have - 1;
}

// As the checkpoint says, or as the data does where the checkpoint needs no table.
StatusOr<std::unique_ptr<data::Tokenizer>> TokenizerOf(const ckpt::CheckpointInfo& info,
                                                       const data::TextOptions& text) {
  ASSIGN_OR_RETURN(const std::optional<data::TokenTable> table, TokenTableOf(info));
  if (!table.has_value()) return data::OpenTokenizer(text);
  StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::TokenizerFrom(*table);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), info.path);
  return tokenizer;
}

}  // namespace

int32_t DrawToken(absl::Span<const float> logits, double temperature, int64_t top_k,
                  double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept =
      top_k > 0 ? std::min<size_t>(static_cast<size_t>(top_k), order.size()) : order.size();
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (temperature <= 0) return order[0];
  order.resize(kept);
  std::vector<double> weight(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    const double gap =
        logits[static_cast<size_t>(order[i])] - logits[static_cast<size_t>(order[0])];
    total += weight[i] = std::exp(gap / temperature);
  }
  double left = uniform * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

StatusOr<std::string> SampleText(const ExecSpec& spec, const KernelTable& kernels,
                                 TileRunner* tiles, const std::atomic<bool>& stop) {
  const SampleSettings& sample = *spec.sample;
  const Program& program = spec.plan.program;
  ASSIGN_OR_RETURN(const ckpt::CheckpointInfo info,
                   ckpt::NewestVerified(sample.checkpoint, nullptr));
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer,
                   TokenizerOf(info, sample.text));
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(sample.prompt));
  if (ids.empty()) return InvalidArgument("sample.prompt: is empty; give at least one character");
  const size_t prompt = ids.size();
  ASSIGN_OR_RETURN(BoundSection predict, BoundSection::Bind(program.predict, kernels,
                                                            DeviceKind::kCpu, tiles->threads()));
  const std::unique_ptr<Device> device = MakeCpuDevice();
  ASSIGN_OR_RETURN(
      const RankMemory memory,
      RankMemory::Allocate(device.get(), program, {.scratch_bytes = predict.scratch_bytes()}));
  RETURN_IF_ERROR(RestoreParameters(info, program, memory.param()));

  const SpaceBases bases = memory.Bases(0, RankMemory::Slots::kPredict);
  Launcher launcher;
  launcher.tiles = tiles;
  launcher.scratch = memory.scratch();
  const Shape& shape = program.logits.meta.shape;  // [1, context, vocab]
  const int64_t context = shape.dim(1), vocab = shape.dim(2);
  const float* logits = reinterpret_cast<const float*>(
      static_cast<const char*>(bases.Find(program.logits.space, program.logits.index)) +
      program.logits.offset);
  for (int64_t i = 0; i < sample.tokens; ++i) {
    if (stop.load()) return Aborted("sampling was cancelled after ", i, " tokens");
    const int64_t last = FillWindow(ids, context, static_cast<int32_t*>(bases.inputs[0]));
    RETURN_IF_ERROR(predict.Run(bases, launcher, {}));
    const double uniform = UnitFloat(Philox(sample.seed, 0, static_cast<uint64_t>(i)).word[0]);
    // Ids that the tokenizer does not have (a vocabulary padded by the model) are never drawn.
    const size_t width = static_cast<size_t>(std::min(vocab, tokenizer->vocab()));
    ids.push_back(
        DrawToken({logits + last * vocab, width}, sample.temperature, sample.top_k, uniform));
  }
  return absl::StrCat(sample.prompt, tokenizer->Decode(absl::MakeConstSpan(ids).subspan(prompt)));
}

}  // namespace weft
