// weft-worker: wires the node's agent; `weft-worker exec` is the process of one rank and
// `weft-worker probe` says what the machine has. Exit codes of
// the agent: 0 told to end, 1 failed, 2 wrong settings; of an executor: see
// worker/exec/link/executor_main.h.
#include <cstdio>

#include "CLI/CLI.hpp"
#include "hwy/highway.h"

#include "dnnl.h"
#include "fabric/base/log.h"
#include "fabric/opset/opset.h"
#include "fabric/wire/daemon_flags.h"
#include "fabric/wire/shutdown.h"
#include "fabric/wire/version.h"
#include "proto/config.pb.h"
#include "worker/agent/agent.h"
#include "worker/agent/node_facts.h"
#include "worker/core/device/device.h"
#include "worker/exec/link/executor_main.h"
#include "worker/probe.h"

namespace weft {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr absl::Duration kStopGrace = absl::Seconds(60);

const std::vector<wire::FlagHelp> kHelp = {
    {"coordinator", "host:port; empty: read <state_dir>/endpoint"},
    {"token_file", "must be 0600 [<state_dir>/token]"},
    {"state_dir", "of the coordinator on this machine, for the two above"},
    {"slots", "ranks that may run here [the GPUs, else the cores this process may use]"},
    {"host", "address that other nodes reach this one by [127.0.0.1]"},
    {"log_level", "debug, info, warn or error [info]"},
    {"heartbeat_interval_ms", "[500]"},
    {"parent_pid", "end when this process is gone; 0: never [0]"},
    {"coordinator_lost_s", "absence after which executors save and end [600]"},
};

void FillDefaults(v1::WorkerConfig* config) {
  if (config->host().empty()) config->set_host("127.0.0.1");
  if (config->log_level().empty()) config->set_log_level("info");
  if (config->heartbeat_interval_ms() == 0) config->set_heartbeat_interval_ms(500);
  if (config->coordinator_lost_s() == 0) config->set_coordinator_lost_s(600);
}

Status CheckConfig(const v1::WorkerConfig& config) {
  if (config.state_dir().empty() && (config.coordinator().empty() || config.token_file().empty())) {
    return InvalidArgument("state_dir: required unless coordinator and token_file are given");
  }
  if (config.slots() < 0 || config.slots() > 1024) {
    return InvalidArgument("slots: ", config.slots(), " is not within 1 to 1024");
  }
  if (config.heartbeat_interval_ms() < 10) {
    return InvalidArgument("heartbeat_interval_ms: ", config.heartbeat_interval_ms(),
                           " is below 10");
  }
  if (config.coordinator_lost_s() < 0 || config.parent_pid() < 0) {
    return InvalidArgument("coordinator_lost_s and parent_pid must not be negative");
  }
  return absl::OkStatus();
}

// Where this program lies, also after its file was replaced.
std::string OwnProgram() { return "/proc/self/exe"; }

// What the node's first GPU says; the others are of its model. Makes no context, so it costs the
// agent no device memory.
void AddGpus(v1::Registration* facts) {
  const int count = CudaDeviceCount();
  if (count == 0) return;
  const StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(0);
  if (!device.ok()) {
    LOG_WARN("GPUs are not used: {}", device.status().ToString());
    return;
  }
  const DeviceInfo info = (*device)->info();
  v1::GpuFacts* gpu = facts->mutable_gpu();
  gpu->set_count(count);
  gpu->set_model(info.model);
  gpu->set_processors(info.processors);
  gpu->set_memory_bytes(info.memory_bytes);
  for (const auto& [name, version] : info.libraries) (*gpu->mutable_libraries())[name] = version;
}

v1::Registration MakeFacts(const v1::WorkerConfig& config) {
  const agent::NodeFacts node = agent::ReadNodeFacts();
  v1::Registration facts;
  facts.set_host(config.host());
  AddGpus(&facts);
  const int32_t natural_slots = facts.gpu().count() > 0 ? facts.gpu().count() : node.cores;
  facts.set_slots(config.slots() > 0 ? config.slots() : natural_slots);
  facts.set_cores(node.cores);
  facts.set_cpu(node.cpu);
  facts.set_memory_bytes(node.memory_bytes);
  for (const std::string& set : node.instruction_sets) facts.add_instruction_sets(set);
  const dnnl_version_t* onednn = dnnl_version();
  (*facts.mutable_libraries())["onednn"] =
      absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch);
  (*facts.mutable_libraries())["highway"] = absl::StrCat(HWY_MAJOR, ".", HWY_MINOR, ".", HWY_PATCH);
  facts.set_opset_digest(BuiltinOpSet().Digest());
  facts.set_version(wire::kVersion);
  facts.set_device(facts.gpu().count() > 0 ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU);
  return facts;
}

Status Serve(const v1::WorkerConfig& config) {
  agent::AgentOptions options;
  options.coordinator = {.address = config.coordinator(),
                         .token_file = config.token_file(),
                         .state_dir = config.state_dir()};
  options.facts = MakeFacts(config);
  options.program = OwnProgram();
  options.log_level = config.log_level();
  options.heartbeat_interval = absl::Milliseconds(config.heartbeat_interval_ms());
  options.coordinator_lost = absl::Seconds(config.coordinator_lost_s());
  agent::Agent agent(std::move(options));
  LOG_INFO("worker started id={}", agent.worker());
  ASSIGN_OR_RETURN(const wire::ShutdownCause cause, wire::WaitForShutdown(config.parent_pid()));
  LOG_INFO("ending cause={}", cause == wire::ShutdownCause::kSignal ? "signal" : "parent gone");
  if (cause == wire::ShutdownCause::kSignal) agent.SaveAndStop(kStopGrace);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Runs the ranks of training jobs on this node.");
  app.footer("Exit codes: 0 told to end, 1 failed, 2 wrong settings.");
  v1::WorkerConfig config;
  const wire::DaemonFlags flags(&app, config, kHelp);
  app.set_version_flag("--version", wire::kVersion);
  CLI::App* exec = app.add_subcommand("exec", "the process of one rank; started by the worker");
  int fd = -1, shared_memory_fd = -1;
  std::string exec_log_level = "info";
  exec->add_option("--fd", fd, "inherited socket")->required();
  exec->add_option("--shm-fd", shared_memory_fd, "inherited shared memory");
  exec->add_option("--log_level", exec_log_level, "debug, info, warn or error");
  CLI::App* probe = app.add_subcommand("probe", "print what this machine has, as JSON, and end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  if (exec->parsed()) {
    InitLog("weft-exec", exec_log_level);
    return RunExecutor(fd, shared_memory_fd);
  }
  if (probe->parsed()) {
    std::printf("%s\n", ProbeJson().c_str());
    return 0;
  }
  wire::BlockShutdownSignals();
  Status status = flags.Load(&config);
  if (status.ok()) {
    FillDefaults(&config);
    status = CheckConfig(config);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "weft-worker: %s\n", std::string(status.message()).c_str());
    return kUsage;
  }
  InitLog("weft-worker", config.log_level());
  status = Serve(config);
  if (status.ok()) return 0;
  LOG_ERROR("failed error={}", status.ToString());
  return kFailed;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
