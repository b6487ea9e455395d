// The coordinator's client API in C++: every call has a deadline, an error says what to do, and
// calls that may be repeated safely are repeated while the coordinator is away for a moment
// (submitting too: it carries a request id). Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "fabric/base/status.h"
#include "proto/client_api.pb.h"

namespace weft {

struct ClientOptions {
  std::string address;  // "host:port"
  std::string token;
  absl::Duration call_timeout = absl::Seconds(30);
  // How long a call is repeated while nobody answers.
  absl::Duration retry_for = absl::Seconds(3);
};

enum class CancelMode { kSave, kDiscard };

// A random UUID, as text.
std::string MakeRequestId();

class Client {
 public:
  // Where a coordinator on this machine listens and its token: `address` and `token_file` when
  // given, else from the files in `state_dir`. NotFound: no coordinator was started there;
  // PermissionDenied: the token file is no secret.
  static StatusOr<ClientOptions> Locate(const std::string& address, const std::string& token_file,
                                        const std::string& state_dir);

  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;

  const std::string& address() const { return options_.address; }

  // All: Unavailable when nobody answers, DeadlineExceeded, Unauthenticated, and what
  // client_api.proto names.
  StatusOr<v1::Job> Submit(const v1::JobSpec& spec, const std::string& request_id);
  StatusOr<v1::Job> Validate(const v1::JobSpec& spec);
  StatusOr<v1::Plan> Plan(const v1::JobSpec& spec, int ranks);
  StatusOr<v1::Job> Get(const std::string& id);
  // Newest first, at most `limit`; 0: all.
  StatusOr<std::vector<v1::Job>> List(int64_t limit);
  StatusOr<v1::Job> Cancel(const std::string& id, CancelMode mode);
  StatusOr<std::vector<v1::WorkerView>> Workers();
  StatusOr<v1::GetVersionResponse> Version();

  // One stream of a job's events; OK when it ended after the terminal one. Cancelled after
  // StopStreams.
  Status StreamEvents(const std::string& id, int64_t after_sequence,
                      absl::FunctionRef<void(const v1::JobEvent&)> on_event);
  Status StreamLogs(const v1::WatchLogsRequest& request,
                    absl::FunctionRef<void(const v1::WatchLogsResponse&)> on_line);

  // Ends running streams and refuses new ones.
  void StopStreams();
  bool streams_stopped() const;

 private:
  struct Rpc;
  const ClientOptions options_;
  const std::unique_ptr<Rpc> rpc_;
};

}  // namespace weft
