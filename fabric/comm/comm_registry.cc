#include "fabric/comm/comm_registry.h"

#include "absl/strings/str_join.h"

#include "fabric/base/suggest.h"

namespace weft::comm {
namespace {

StatusOr<std::unique_ptr<Communicator>> JoinShm(const GroupSpec& spec,
                                                std::unique_ptr<TcpListener>) {
  return JoinSharedMemory(spec);
}

constexpr CommBackend kBackends[] = {
    {"shm", false, true, JoinShm},
    {"tcp", true, false, JoinTcp},
};

}  // namespace

std::vector<std::string> CommBackendNames() {
  std::vector<std::string> names;
  for (const CommBackend& backend : kBackends) names.push_back(backend.name);
  return names;
}

StatusOr<const CommBackend*> FindCommBackend(absl::string_view name) {
  for (const CommBackend& backend : kBackends) {
    if (name == backend.name) return &backend;
  }
  const std::vector<std::string> names = CommBackendNames();
  return InvalidArgument("no communicator backend is called '", name, "'; there are ",
                         absl::StrJoin(names, ", "), DidYouMean(name, names));
}

}  // namespace weft::comm
