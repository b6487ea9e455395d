#include "fabric/comm/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "fabric/base/check.h"

namespace weft::comm {

Mac MacOf(absl::string_view secret, absl::string_view text) {
  Mac mac;
  unsigned int bytes = 0;
  WEFT_CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                  reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                  &bytes) != nullptr);
  WEFT_CHECK(bytes == mac.size());
  return mac;
}

bool SameMac(const Mac& a, const Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Mac RandomNonce() {
  Mac nonce;
  WEFT_CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

}  // namespace weft::comm
