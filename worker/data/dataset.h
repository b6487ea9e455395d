// Dataset: samples by number. What sample n is depends on (seed, n) and the data alone, never on
// who asks or when, so any rank can take any share of a step and a resumed run goes on where it
// was. Immutable once opened; safe to read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"

namespace weft::data {

class Tokenizer;

// One input of the model: per-sample meta (without the sample dimension).
struct Slot {
  std::string name;
  TensorMeta sample;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // The inputs this data provides, in the order in which pointers are handed over.
  virtual const std::vector<Slot>& slots() const = 0;
  // Training sample `number` (counted over the whole run: step * batch + row) into one pointer a
  // slot.
  virtual void TrainSample(int64_t number, absl::Span<void* const> into) const = 0;
  // Held-out samples; they are never trained on.
  virtual int64_t eval_samples() const = 0;
  virtual void EvalSample(int64_t number, absl::Span<void* const> into) const = 0;
  // Size and hash of what was read, equal on all nodes or the job is refused: "bytes:sha256".
  virtual std::string digest() const = 0;
  // What the ids in "tokens" mean; null where they are no text.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
};

// What a tokenizer learned from the data, as a checkpoint keeps it. Empty: nothing.
struct TokenTable {
  std::string name;  // "characters": their code points; "merges": pairs of tokens
  std::vector<int32_t> numbers;
};

// Text <-> ids, for sampling.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab() const = 0;
  // InvalidArgument names the first character that has no id.
  virtual StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const = 0;
  virtual std::string Decode(absl::Span<const int32_t> ids) const = 0;
  virtual TokenTable table() const = 0;
};

enum class TextTokens { kBytes, kCharacters, kBpe };

struct TextOptions {
  std::string path;
  TextTokens tokens = TextTokens::kBytes;
  int64_t bpe_vocab = 0;    // tokens that kBpe learns
  double validation = 0.1;  // share at the file's end that is held out
  int64_t context = 0;
  int64_t vocab = 0;  // of the model; the data's must fit
  uint64_t seed = 0;
};

struct ReverseOptions {
  int64_t symbols = 32;
  int64_t max_length = 16;
  int64_t eval_samples = 1000;
  int64_t context = 0;
  uint64_t seed = 0;
};

// Files of token ids; `path` and `validation` are patterns of FindFiles.
struct TokenOptions {
  std::string path;
  std::string validation;  // empty: nothing is held out
  int64_t eval_samples = 1000;
  int64_t context = 0;
  int64_t vocab = 0;  // of the model
  uint64_t seed = 0;
};

struct Cifar10Options {
  std::string path;        // a folder, or a pattern of FindFiles
  std::string validation;  // such a pattern; empty: the folder's test_batch.bin
  uint64_t seed = 0;
};

// A target that does not count.
inline constexpr int32_t kIgnored = -1;

// Windows of `context` tokens of a text file in an order that visits each start once an epoch.
// Errors name the file: absent, empty, too short for one window in either part, not UTF-8 (with the
// byte offset), or with more distinct characters than `vocab`.
StatusOr<std::unique_ptr<Dataset>> OpenText(const TextOptions& options);

// Synthetic sequence reversal: ids BOS 0, SEP 1, EOS 2, PAD 3, symbols from 4. A row is
// BOS a1..an SEP an..a1 EOS PAD...; targets count from SEP up to the last symbol, which predicts
// EOS.
StatusOr<std::unique_ptr<Dataset>> OpenReverse(const ReverseOptions& options);

// Windows of ready-made tokens in an order that visits each once an epoch; windows follow each
// other without gap and do not cross files. Errors name the file: absent, no such format, cut off,
// too short for one window, ids outside of `vocab` (looked for in a part of each file only).
StatusOr<std::unique_ptr<Dataset>> OpenTokens(const TokenOptions& options);

// "images" u8 [3, 32, 32] and "targets" i32 [] in an order that visits each image once an epoch.
// Errors name the file: absent, no such format, a label above 9.
StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const Cifar10Options& options);

// The tokenizer that OpenText uses; bytes need no file. `options` as OpenText had them.
StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TextOptions& options);

// The tokenizer that gave `table`, and bytes for an empty one. DataLoss when no tokenizer did.
StatusOr<std::unique_ptr<Tokenizer>> TokenizerFrom(const TokenTable& table);

}  // namespace weft::data
