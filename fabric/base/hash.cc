#include "fabric/base/hash.h"

#include "absl/strings/escaping.h"
#include <isa-l.h>
#include <openssl/evp.h>

#include "fabric/base/check.h"

namespace weft {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  WEFT_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t bytes) {
  WEFT_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1);
}

std::string Sha256::FinishHex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  WEFT_CHECK(EVP_DigestFinal_ex(state_->context, digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digest), size));
}

uint32_t Crc32c(uint32_t seed, const void* data, size_t bytes) {
  // ISA-L's crc32_iscsi neither pre- nor post-inverts; the standard CRC32C does both. Its length is
  // an int, so large ranges go in pieces.
  const unsigned char* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  constexpr size_t kPiece = size_t{1} << 30;
  while (bytes > 0) {
    const size_t piece = bytes < kPiece ? bytes : kPiece;
    crc = crc32_iscsi(const_cast<unsigned char*>(p), static_cast<int>(piece), crc);
    p += piece;
    bytes -= piece;
  }
  return ~crc;
}

uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace weft
