#include "worker/data/words.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace weft::data {
namespace {

enum class Kind { kSpace, kLetter, kDigit, kSign };

Kind KindOf(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return Kind::kSpace;
  if (byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) {
    return Kind::kLetter;
  }
  return byte >= '0' && byte <= '9' ? Kind::kDigit : Kind::kSign;
}

// The end of the run of `kind` that begins at `at`.
size_t RunEnd(absl::string_view text, size_t at, Kind kind) {
  while (at < text.size() && KindOf(text[at]) == kind) ++at;
  return at;
}

size_t UncutEnd(absl::string_view text, size_t at) {
  if (text[at] == '\'') {
    for (const absl::string_view end : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (absl::StartsWith(text.substr(at), end)) return at + end.size();
    }
  }
  const size_t word = text[at] == ' ' ? at + 1 : at;
  if (word < text.size() && KindOf(text[word]) != Kind::kSpace) {
    return RunEnd(text, word, KindOf(text[word]));
  }
  const size_t end = RunEnd(text, at, Kind::kSpace);
  // The last white space belongs to what follows, if it is not alone.
  return end == text.size() || end == at + 1 ? end : end - 1;
}

}  // namespace

size_t WordEnd(absl::string_view text, size_t at) {
  // What lies further ahead than a piece is long decides nothing but white space's last byte.
  const absl::string_view seen = text.substr(0, at + kMostWordBytes + 1);
  return std::min(UncutEnd(seen, at), at + kMostWordBytes);
}

}  // namespace weft::data
