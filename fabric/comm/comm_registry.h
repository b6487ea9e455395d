// Backends by the name that plans use. A new one is a row in comm_registry.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {

struct CommBackend {
  const char* name;
  bool needs_listener;       // GroupSpec::endpoints and a TcpListener
  bool needs_shared_memory;  // GroupSpec::shared_memory_fd
  StatusOr<std::unique_ptr<Communicator>> (*join)(const GroupSpec& spec,
                                                  std::unique_ptr<TcpListener> listener);
};

// InvalidArgument, with the nearest name, for one that there is not.
StatusOr<const CommBackend*> FindCommBackend(absl::string_view name);

std::vector<std::string> CommBackendNames();

}  // namespace weft::comm
