#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

#include "fabric/ckpt/atomic_file.h"
#include "worker/data/bpe.h"
#include "worker/data/dataset.h"
#include "worker/data/text.h"
#include "worker/data/utf8.h"

namespace weft::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>(id);
    return text;
  }
  TokenTable table() const override { return {}; }
};

// Ids in code point order, so that they depend on which characters there are and not on where.
class CharacterTokenizer final : public Tokenizer {
 public:
  // Sorted, each once.
  explicit CharacterTokenizer(std::vector<char32_t> characters)
      : characters_(std::move(characters)) {}
  int64_t vocab() const override { return static_cast<int64_t>(characters_.size()); }
  StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      ASSIGN_OR_RETURN(const char32_t c, NextCodePoint(text, &at));
      const auto it = std::lower_bound(characters_.begin(), characters_.end(), c);
      if (it == characters_.end() || *it != c) {
        return InvalidArgument("character U+", absl::StrFormat("%04X", static_cast<uint32_t>(c)),
                               " before byte ", at, " is not among the ", characters_.size(),
                               " of the data");
      }
      ids.push_back(static_cast<int32_t>(it - characters_.begin()));
    }
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocab()) AppendUtf8(characters_[static_cast<size_t>(id)], &text);
    }
    return text;
  }
  TokenTable table() const override {
    return {"characters", {characters_.begin(), characters_.end()}};
  }

 private:
  std::vector<char32_t> characters_;
};

constexpr char32_t kLastCodePoint = 0x10FFFF;

StatusOr<std::unique_ptr<Tokenizer>> CharactersFrom(const TokenTable& table) {
  std::vector<char32_t> characters;
  for (const int32_t number : table.numbers) {
    const auto c = static_cast<char32_t>(number);
    if (c > kLastCodePoint || (!characters.empty() && c <= characters.back())) {
      return DataLoss("the characters are no rising code points");
    }
    characters.push_back(c);
  }
  return std::make_unique<CharacterTokenizer>(std::move(characters));
}

StatusOr<std::unique_ptr<Tokenizer>> MergesFrom(const TokenTable& table) {
  if (table.numbers.size() % 2 != 0) return DataLoss("the merges are no pairs");
  std::vector<Merge> merges;
  for (size_t i = 0; i < table.numbers.size(); i += 2) {
    merges.emplace_back(table.numbers[i], table.numbers[i + 1]);
  }
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = BpeTokenizer(std::move(merges));
  if (!tokenizer.ok()) return DataLoss("the merges: ", tokenizer.status().message());
  return tokenizer;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const TextOptions& options,
                                                 absl::string_view text) {
  if (options.tokens == TextTokens::kBytes) return std::make_unique<ByteTokenizer>();
  if (options.tokens == TextTokens::kBpe) {
    const auto train = static_cast<size_t>(TrainBytes(text, options.validation));
    return BpeTokenizer(LearnMerges(text.substr(0, train), options.bpe_vocab));
  }
  std::set<char32_t> characters;
  for (size_t at = 0; at < text.size();) {
    ASSIGN_OR_RETURN(const char32_t c, NextCodePoint(text, &at));
    characters.insert(c);
  }
  return std::make_unique<CharacterTokenizer>(
      std::vector<char32_t>(characters.begin(), characters.end()));
}

StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const TextOptions& options) {
  if (options.tokens == TextTokens::kBytes) return std::make_unique<ByteTokenizer>();
  ASSIGN_OR_RETURN(const std::string text, ckpt::ReadFile(options.path));
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = TokenizerOf(options, text);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), options.path);
  return tokenizer;
}

StatusOr<std::unique_ptr<Tokenizer>> TokenizerFrom(const TokenTable& table) {
  if (table.name.empty()) return std::make_unique<ByteTokenizer>();
  if (table.name == "characters") return CharactersFrom(table);
  if (table.name == "merges") return MergesFrom(table);
  return DataLoss("there is no tokenizer with '", table.name, "'");
}

}  // namespace weft::data
