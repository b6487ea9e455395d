#include "worker/data/text.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "fabric/base/hash.h"
#include "fabric/ckpt/atomic_file.h"
#include "worker/data/order.h"

namespace weft::data {
namespace {

class TextDataset final : public Dataset {
 public:
  TextDataset(std::unique_ptr<Tokenizer> tokenizer, std::vector<int32_t> ids, int64_t train_ids,
              int64_t context, uint64_t seed, std::string digest)
      : tokenizer_(std::move(tokenizer)),
        ids_(std::move(ids)),
        train_ids_(train_ids),
        context_(context),
        seed_(seed),
        digest_(std::move(digest)) {
    const TensorMeta row{DType::kI32, {context}};
    slots_ = {{"tokens", row}, {"targets", row}};
  }

  const std::vector<Slot>& slots() const override { return slots_; }

  // Every start of a window is a record.
  void TrainSample(int64_t number, absl::Span<void* const> into) const override {
    Window(RecordOf(seed_, train_ids_ - context_, number), context_, into);
  }

  // Consecutive windows; the last one may be shorter, its rest does not count.
  int64_t eval_samples() const override {
    const int64_t targets = held_out() - 1;
    return targets < 1 ? 0 : (targets + context_ - 1) / context_;
  }
  void EvalSample(int64_t number, absl::Span<void* const> into) const override {
    const int64_t begin = number * context_;
    Window(train_ids_ + begin, std::min(context_, held_out() - 1 - begin), into);
  }
  std::string digest() const override { return digest_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }

 private:
  int64_t held_out() const { return static_cast<int64_t>(ids_.size()) - train_ids_; }

  void Window(int64_t start, int64_t length, absl::Span<void* const> into) const {
    int32_t* tokens = static_cast<int32_t*>(into[0]);
    int32_t* targets = static_cast<int32_t*>(into[1]);
    for (int64_t i = 0; i < context_; ++i) {
      tokens[i] = i < length ? ids_[static_cast<size_t>(start + i)] : 0;
      targets[i] = i < length ? ids_[static_cast<size_t>(start + i + 1)] : kIgnored;
    }
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> ids_;
  int64_t train_ids_;
  int64_t context_;
  uint64_t seed_;
  std::string digest_;
  std::vector<Slot> slots_;
};

Status CheckLengths(const TextOptions& o, int64_t train, int64_t held_out) {
  if (train <= o.context) {
    return InvalidArgument("'", o.path, "' has ", train,
                           " tokens to train on, fewer than one window of ", o.context + 1,
                           "; use more text or a smaller context");
  }
  if (o.validation > 0 && held_out < 2) {
    return InvalidArgument("'", o.path, "': data.text.validation ", o.validation, " leaves ",
                           held_out,
                           " held-out tokens; at least 2 are needed, or 0 to hold out nothing");
  }
  return absl::OkStatus();
}

// The whole text as ids, and how many of them are trained on. Byte pairs do not cross that border;
// the other tokens are counted, not bytes.
struct EncodedText {
  std::vector<int32_t> ids;
  int64_t train = 0;
};

StatusOr<EncodedText> Encode(const TextOptions& options, const Tokenizer& tokenizer,
                             absl::string_view text) {
  EncodedText encoded;
  if (options.tokens != TextTokens::kBpe) {
    ASSIGN_OR_RETURN(encoded.ids, tokenizer.Encode(text));
    const auto total = static_cast<int64_t>(encoded.ids.size());
    encoded.train = total - static_cast<int64_t>(static_cast<double>(total) * options.validation);
    return encoded;
  }
  const auto train = static_cast<size_t>(TrainBytes(text, options.validation));
  ASSIGN_OR_RETURN(encoded.ids, tokenizer.Encode(text.substr(0, train)));
  encoded.train = static_cast<int64_t>(encoded.ids.size());
  ASSIGN_OR_RETURN(const std::vector<int32_t> rest, tokenizer.Encode(text.substr(train)));
  encoded.ids.insert(encoded.ids.end(), rest.begin(), rest.end());
  return encoded;
}

}  // namespace

int64_t TrainBytes(absl::string_view text, double validation) {
  const auto total = static_cast<int64_t>(text.size());
  return total - static_cast<int64_t>(static_cast<double>(total) * validation);
}

StatusOr<std::unique_ptr<Dataset>> OpenText(const TextOptions& options) {
  if (!(options.validation >= 0 && options.validation < 1)) {
    return InvalidArgument("data.text.validation: ", options.validation, " is outside 0 <= x < 1");
  }
  ASSIGN_OR_RETURN(const std::string text, ckpt::ReadFile(options.path));
  if (text.empty()) return InvalidArgument("'", options.path, "' is empty");
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = TokenizerOf(options, text);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), absl::StrCat("'", options.path, "'"));
  if ((*tokenizer)->vocab() > options.vocab) {
    return InvalidArgument("'", options.path, "' has ", (*tokenizer)->vocab(),
                           " distinct tokens, model.gpt.vocab is ", options.vocab);
  }
  ASSIGN_OR_RETURN(EncodedText encoded, Encode(options, **tokenizer, text));
  const auto total = static_cast<int64_t>(encoded.ids.size());
  RETURN_IF_ERROR(CheckLengths(options, encoded.train, total - encoded.train));
  Sha256 sha;
  sha.Update(text.data(), text.size());
  const std::string digest = absl::StrCat(text.size(), ":", sha.FinishHex());
  return std::make_unique<TextDataset>(*std::move(tokenizer), std::move(encoded.ids), encoded.train,
                                       options.context, options.seed, digest);
}

}  // namespace weft::data
