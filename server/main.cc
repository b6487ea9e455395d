// weft-coordinator: wires the parts. Exit codes: 0 told to end, 1 failed, 2 wrong settings.
#include <cstdio>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/service_type.h"

#include "fabric/base/log.h"
#include "fabric/wire/daemon_flags.h"
#include "fabric/wire/shutdown.h"
#include "fabric/wire/version.h"
#include "proto/config.pb.h"
#include "server/coordinator.h"
#include "server/service/client_service.h"
#include "server/service/listener.h"
#include "server/service/member_service.h"
#include "server/service/work_pool.h"
#include "server/state_dir.h"

namespace weft {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kCallThreads = 4;
constexpr size_t kMaxQueuedCalls = 4096;
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

const std::vector<wire::FlagHelp> kHelp = {
    {"listen", "host:port; only loopback until TLS exists [127.0.0.1:0]"},
    {"state_dir", "folder of database, token and endpoint file; required"},
    {"checkpoint_root", "folder of the jobs' checkpoints [<state_dir>/checkpoints]"},
    {"heartbeat_timeout_ms", "silence after which a worker is lost [2000]"},
    {"log_level", "debug, info, warn or error [info]"},
    {"max_events_per_job", "kept; older ones leave a gap marker [10000]"},
    {"max_log_lines_per_job", "kept [10000]"},
    {"parent_pid", "end when this process is gone; 0: never [0]"},
};

void FillDefaults(v1::CoordinatorConfig* config) {
  if (config->listen().empty()) config->set_listen("127.0.0.1:0");
  if (config->log_level().empty()) config->set_log_level("info");
  if (config->heartbeat_timeout_ms() == 0) config->set_heartbeat_timeout_ms(2000);
  if (config->max_events_per_job() == 0) config->set_max_events_per_job(10000);
  if (config->max_log_lines_per_job() == 0) config->set_max_log_lines_per_job(10000);
  if (config->checkpoint_root().empty()) {
    config->set_checkpoint_root(config->state_dir() + "/checkpoints");
  }
}

Status CheckConfig(const v1::CoordinatorConfig& config) {
  if (config.state_dir().empty()) return InvalidArgument("state_dir: required; name a folder");
  if (config.heartbeat_timeout_ms() < 100) {
    return InvalidArgument("heartbeat_timeout_ms: ", config.heartbeat_timeout_ms(),
                           " is below 100");
  }
  if (config.max_events_per_job() < 10 || config.max_log_lines_per_job() < 1) {
    return InvalidArgument("max_events_per_job must be at least 10, max_log_lines_per_job 1");
  }
  if (config.parent_pid() < 0) return InvalidArgument("parent_pid: is negative");
  return absl::OkStatus();
}

Status Serve(const v1::CoordinatorConfig& config) {
  ASSIGN_OR_RETURN(auto state_dir, StateDir::Open(config.state_dir()));
  ASSIGN_OR_RETURN(const std::string token, state_dir->LoadToken());
  CoordinatorOptions options;
  options.database = state_dir->DatabasePath();
  options.checkpoint_root = std::filesystem::absolute(config.checkpoint_root());
  options.opset_digest = BuiltinOpSet().Digest();
  options.heartbeat_timeout = absl::Milliseconds(config.heartbeat_timeout_ms());
  options.max_events_per_job = static_cast<size_t>(config.max_events_per_job());
  options.max_log_lines_per_job = static_cast<size_t>(config.max_log_lines_per_job());
  options.planning = MakePlanning(BuiltinOpSet());
  v1::GetVersionResponse version;
  version.set_version(wire::kVersion);
  version.set_opset_digest(options.opset_digest);
  ASSIGN_OR_RETURN(auto coordinator, Coordinator::Open(std::move(options)));
  service::WorkPool pool(kCallThreads, kMaxQueuedCalls);
  const auto jobs = service::MakeJobService(coordinator.get(), &pool, version);
  const auto members = service::MakeMemberService(coordinator.get(), &pool);
  ASSIGN_OR_RETURN(auto listener,
                   service::Listener::Open(config.listen(), token, {jobs.get(), members.get()}));
  coordinator->Start();
  RETURN_IF_ERROR(state_dir->WriteEndpoint(listener->address()));
  LOG_INFO("listening address={} state_dir={}", listener->address(), config.state_dir());
  const StatusOr<wire::ShutdownCause> cause = wire::WaitForShutdown(config.parent_pid());
  state_dir->RemoveEndpoint();
  LOG_INFO("ending");
  listener->Shutdown(kShutdownGrace);
  return cause.status();
}

int Main(int argc, char** argv) {
  wire::BlockShutdownSignals();
  CLI::App app("Accepts, plans and follows training jobs.");
  app.footer("Exit codes: 0 told to end, 1 failed, 2 wrong settings.");
  v1::CoordinatorConfig config;
  const wire::DaemonFlags flags(&app, config, kHelp);
  app.set_version_flag("--version", wire::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  Status status = flags.Load(&config);
  if (status.ok()) {
    FillDefaults(&config);
    status = CheckConfig(config);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "weft-coordinator: %s\n", std::string(status.message()).c_str());
    return kUsage;
  }
  InitLog("weft-coordinator", config.log_level());
  status = Serve(config);
  if (status.ok()) return 0;
  LOG_ERROR("failed error={}", status.ToString());
  return kFailed;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
