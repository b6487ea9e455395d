#include "fabric/base/status.h"

#include <cerrno>
#include <cstring>

namespace weft {

Status Annotate(const Status& status, absl::string_view place) {
  if (status.ok()) return status;
  Status annotated(status.code(), absl::StrCat(place, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

Status ErrnoStatus(absl::string_view what, int error_number) {
  return absl::ErrnoToStatus(error_number, what);
}

}  // namespace weft
