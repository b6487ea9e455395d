#include "worker/data/utf8.h"

#include <cstdint>

namespace weft::data {

StatusOr<char32_t> NextCodePoint(absl::string_view text, size_t* at) {
  const size_t start = *at;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(start);
  if (first < 0x80) {
    *at = start + 1;
    return first;
  }
  const int extra = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  constexpr char32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  bool good = first >= 0xC2 && first <= 0xF4 && start + extra < text.size();
  char32_t c = first & (0x3F >> extra);
  for (int i = 1; good && i <= extra; ++i) {
    good = (byte(start + i) & 0xC0) == 0x80;
    c = (c << 6) | (byte(start + i) & 0x3F);
  }
  if (!good || c < kSmallest[extra] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
    return InvalidArgument("not UTF-8 at byte ", start, "; convert the file or use tokens: bytes");
  }
  *at = start + extra + 1;
  return c;
}

void AppendUtf8(char32_t c, std::string* out) {
  const uint32_t v = c;
  if (v < 0x80) {
    *out += static_cast<char>(v);
  } else if (v < 0x800) {
    *out += static_cast<char>(0xC0 | (v >> 6));
    *out += static_cast<char>(0x80 | (v & 0x3F));
  } else if (v < 0x10000) {
    *out += static_cast<char>(0xE0 | (v >> 12));
    *out += static_cast<char>(0x80 | ((v >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (v & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | (v >> 18));
    *out += static_cast<char>(0x80 | ((v >> 12) & 0x3F));
    *out += static_cast<char>(0x80 | ((v >> 6) & 0x3F));
    *out += static_cast<char>(0x80 | (v & 0x3F));
  }
}

}  // namespace weft::data
