// ExecutorLink: calls to one executor over the socket pair that it inherited. Thread-safe. Its end
// closes the socket, and that ends the executor.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"

#include "fabric/base/status.h"
#include "proto/exec_api.pb.h"

namespace weft::agent {

class ExecutorLink {
 public:
  // Takes `fd`.
  explicit ExecutorLink(int fd);
  ~ExecutorLink();

  // Codes of all: what the executor answers; Unavailable when it is gone; DeadlineExceeded.
  StatusOr<v1::OpenResponse> Open(const v1::OpenRequest& request, absl::Duration limit);
  StatusOr<v1::PrepareResponse> Prepare(const v1::PrepareRequest& request, absl::Duration limit);
  // Until its last report.
  Status Run(const std::function<void(v1::ExecutorReport)>& on_report);
  // Returns at once; an error only shows in how the run ends.
  void Stop(v1::StopMode mode);

 private:
  struct Rpc;
  std::unique_ptr<Rpc> rpc_;
};

}  // namespace weft::agent
