#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

#include "fabric/ckpt/atomic_file.h"
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
};

// Ids in code point order, so that they depend on which characters there are and not on where.
class CharacterTokenizer final : public Tokenizer {
 public:
  explicit CharacterTokenizer(const std::set<char32_t>& characters)
      : characters_(characters.begin(), characters.end()) {}
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

 private:
  std::vector<char32_t> characters_;
};

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(TextTokens tokens, absl::string_view text) {
  if (tokens == TextTokens::kBytes) return std::make_unique<ByteTokenizer>();
  std::set<char32_t> characters;
  for (size_t at = 0; at < text.size();) {
    ASSIGN_OR_RETURN(const char32_t c, NextCodePoint(text, &at));
    characters.insert(c);
  }
  return std::make_unique<CharacterTokenizer>(characters);
}

StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(TextTokens tokens, const std::string& path) {
  if (tokens == TextTokens::kBytes) return TokenizerOf(tokens, "");
  ASSIGN_OR_RETURN(const std::string text, ckpt::ReadFile(path));
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = TokenizerOf(tokens, text);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

}  // namespace weft::data
