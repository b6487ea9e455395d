// Keyed hashes of a generation's secret, and random bytes.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace weft::comm {

using Mac = std::array<uint8_t, 32>;

// HMAC-SHA256 of `text` under `secret`.
Mac MacOf(absl::string_view secret, absl::string_view text);
// In time that does not depend on where they differ.
bool SameMac(const Mac& a, const Mac& b);
Mac RandomNonce();

}  // namespace weft::comm
