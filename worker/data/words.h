// How text falls into pieces before byte pairs are looked for: no token crosses a piece's end.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace weft::data {

// Pieces are no longer than this, whatever the text is.
inline constexpr size_t kMostWordBytes = 256;

// Where the piece that begins at `at` (< text.size()) ends. By GPT-2's rule (openai/gpt-2,
// src/encoder.py): an English contraction's end, or a run of letters, of digits or of other signs
// with at most one space before it, or a run of white space up to the last one before a word. Bytes
// from 0x80 on count as letters, so that UTF-8 stays whole and any bytes will do.
size_t WordEnd(absl::string_view text, size_t at);

}  // namespace weft::data
