// Hashes that processes agree on: SHA-256 (state digest, op digest), CRC32C (frames, checkpoint
// manifest), and a 64-bit hash of text for keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  void Update(const void* data, size_t bytes);
  // 64 lower-case hex digits. The object is spent afterwards.
  std::string FinishHex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// CRC32C (Castagnoli) of `data`, continuing from `seed` (0 to start).
uint32_t Crc32c(uint32_t seed, const void* data, size_t bytes);

// FNV-1a: stable over processes and versions, for keys; not for untrusted tables.
uint64_t StableHash(absl::string_view text);

}  // namespace weft
