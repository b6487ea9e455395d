// Where the coordinator is and the token it wants; read anew at each connection, since a
// coordinator that starts again may listen elsewhere.
#pragma once

#include <string>

#include "fabric/base/status.h"

namespace weft::agent {

struct CoordinatorAddress {
  std::string address;
  std::string token;
  friend bool operator==(const CoordinatorAddress&, const CoordinatorAddress&) = default;
};

struct CoordinatorSource {
  std::string address;     // empty: <state_dir>/endpoint
  std::string token_file;  // empty: <state_dir>/token
  std::string state_dir;

  // Codes as wire::ReadEndpoint and wire::ReadTokenFile.
  StatusOr<CoordinatorAddress> Find() const;
};

}  // namespace weft::agent
