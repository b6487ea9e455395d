#include "fabric/wire/auth.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/server_credentials.h"
#include "openssl/crypto.h"

#include "fabric/base/check.h"

namespace weft::wire {
namespace {

constexpr size_t kSecretBytes = 32;

// Takes the same time for every wrong token of one length.
bool SameSecret(grpc::string_ref given, const std::string& expected) {
  return given.size() == expected.size() &&
         CRYPTO_memcmp(given.data(), expected.data(), expected.size()) == 0;
}

class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(const std::string& token) : expected_("Bearer " + token) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto [begin, end] = metadata.equal_range(kAuthorizationKey);
    if (begin == end) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                          "no token: send metadata 'authorization: Bearer <token>'; the "
                          "coordinator's token file is in its state_dir");
    }
    if (std::next(begin) != end || !SameSecret(begin->second, expected_)) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                          "wrong token: use the one in the coordinator's state_dir");
    }
    consumed->emplace(kAuthorizationKey, std::string(begin->second.data(), begin->second.size()));
    return grpc::Status::OK;
  }

 private:
  const std::string expected_;
};

Status WriteNewToken(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(absl::StrCat("create token file ", path), errno);
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  const std::string line = MakeSecret() + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()) || fsync(fd) != 0) {
    return ErrnoStatus(absl::StrCat("write token file ", path), errno);
  }
  return absl::OkStatus();
}

}  // namespace

std::string MakeSecret() {
  unsigned char bytes[kSecretBytes];
  size_t have = 0;
  while (have < kSecretBytes) {
    const ssize_t got = getrandom(bytes + have, kSecretBytes - have, 0);
    WEFT_CHECK(got > 0 || errno == EINTR);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), kSecretBytes));
}

StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(absl::StrCat("open token file ", path), errno);
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(absl::StrCat("stat token file ", path), errno);
  if ((info.st_mode & 077) != 0) {
    return FailedPrecondition("token file ", path,
                              " may be read or written by others than its owner; make a new one "
                              "or run: chmod 600 ",
                              path);
  }
  char text[257];
  const ssize_t got = read(fd, text, sizeof text);
  if (got < 0) return ErrnoStatus(absl::StrCat("read token file ", path), errno);
  const std::string token(
      absl::StripAsciiWhitespace(absl::string_view(text, static_cast<size_t>(got))));
  if (token.empty() || got == sizeof text) {
    return InvalidArgument("token file ", path, " does not hold one token of at most 256 bytes");
  }
  return token;
}

StatusOr<std::string> ReadOrCreateTokenFile(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) RETURN_IF_ERROR(WriteNewToken(path));
  return ReadTokenFile(path);
}

std::shared_ptr<grpc::ServerCredentials> TokenServerCredentials(const std::string& token) {
  auto credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(token));
  return credentials;
}

}  // namespace weft::wire
