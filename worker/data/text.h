// A text file and the tokenizer over it, as OpenText and OpenTokenizer share them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/data/dataset.h"

namespace weft::data {

// Bytes of `text` that are trained on; what a tokenizer learns from, and where byte pairs end.
int64_t TrainBytes(absl::string_view text, double validation);

// Over text that is in memory. Errors do not name the file.
StatusOr<std::unique_ptr<Tokenizer>> TokenizerOf(const TextOptions& options,
                                                 absl::string_view text);

}  // namespace weft::data
