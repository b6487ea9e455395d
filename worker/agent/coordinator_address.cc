#include "worker/agent/coordinator_address.h"

#include "fabric/wire/auth.h"
#include "fabric/wire/channel.h"

namespace weft::agent {

StatusOr<CoordinatorAddress> CoordinatorSource::Find() const {
  CoordinatorAddress found;
  found.address = address;
  if (address.empty()) {
    ASSIGN_OR_RETURN(const wire::Endpoint endpoint, wire::ReadEndpoint(state_dir));
    found.address = endpoint.address;
  }
  ASSIGN_OR_RETURN(found.token, wire::ReadTokenFile(token_file.empty() ? wire::TokenPath(state_dir)
                                                                       : token_file));
  return found;
}

}  // namespace weft::agent
