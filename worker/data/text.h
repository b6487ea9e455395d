// The tokenizer over text that is already in memory; what OpenText and OpenTokenizer share.
#pragma once

#include <memory>

#include "worker/data/dataset.h"

namespace weft::data {

StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(TextTokens tokens, absl::string_view text);

}  // namespace weft::data
