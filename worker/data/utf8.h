// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"

namespace weft::data {

// The code point at byte `*at` (< text.size()), which moves behind it. InvalidArgument names the
// byte.
StatusOr<char32_t> NextCodePoint(absl::string_view text, size_t* at);

void AppendUtf8(char32_t c, std::string* out);

}  // namespace weft::data
