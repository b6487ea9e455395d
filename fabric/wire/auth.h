// The bearer token that every call carries, and the check of it on the server.
#pragma once

#include <memory>
#include <string>

#include "fabric/base/status.h"

namespace grpc {
class ServerCredentials;
}

namespace weft::wire {

inline constexpr char kAuthorizationKey[] = "authorization";

// 256 random bits as 64 hex digits. Also for the secret of a generation.
std::string MakeSecret();

// The token in `path`. FailedPrecondition when others than its owner may read or write the file;
// NotFound when there is none; InvalidArgument when it holds no token.
StatusOr<std::string> ReadTokenFile(const std::string& path);

// Reads `path`, or creates it with a new secret and mode 0600. Codes as ReadTokenFile.
StatusOr<std::string> ReadOrCreateTokenFile(const std::string& path);

// Credentials of a loopback listener that refuses every call, of whatever method, that does not
// carry `authorization: Bearer <token>`, with UNAUTHENTICATED. Peers that are not on this machine
// are refused too.
std::shared_ptr<grpc::ServerCredentials> TokenServerCredentials(const std::string& token);

}  // namespace weft::wire
