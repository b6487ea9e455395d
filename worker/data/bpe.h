// Byte pair encoding over bytes: tokens 0..255 are the bytes, each further one is two tokens
// joined. Sennrich, Haddow, Birch: "Neural machine translation of rare words with subword units",
// ACL 2016.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "worker/data/dataset.h"

namespace weft::data {

// Merge i makes token 256 + i of two tokens with smaller ids.
using Merge = std::pair<int32_t, int32_t>;

inline constexpr int64_t kByteTokens = 256;
inline constexpr int64_t kMostBpeTokens = 65536;

// Joins the most frequent pair again and again until there are `vocab` tokens or no pair is there
// twice; of equally frequent pairs the one with the smaller ids, the left one first. A pure
// function of the text.
std::vector<Merge> LearnMerges(absl::string_view text, int64_t vocab);

// InvalidArgument when a merge joins tokens that come after it, or makes a token longer than any
// that LearnMerges makes.
StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer(std::vector<Merge> merges);

}  // namespace weft::data
