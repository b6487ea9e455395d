// What verbs share: connecting, a cluster of one's own, loading a job.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "client/cli/verb.h"

namespace weft::cli {

bool NamesCoordinator(const Session& session) { return session.flags.names_coordinator; }

StatusOr<std::unique_ptr<Client>> Connect(Session& session) {
  const GlobalFlags& flags = session.flags;
  if (flags.state_dir.empty() && (flags.coordinator.empty() || flags.token_file.empty())) {
    return InvalidArgument(
        "neither --state-dir nor HOME is set, so the coordinator cannot be found; give --state-dir "
        "DIR, or --coordinator HOST:PORT with --token-file FILE");
  }
  ASSIGN_OR_RETURN(ClientOptions options,
                   Client::Locate(flags.coordinator, flags.token_file, flags.state_dir));
  auto client = std::make_unique<Client>(std::move(options));
  session.interrupts.SetHandler([target = client.get()](int) { target->StopStreams(); });
  return client;
}

StatusOr<std::unique_ptr<LocalCluster>> StartCluster(Session& session, int ranks,
                                                     const std::string& checkpoint_root) {
  constexpr int kMostSlots = 1024;  // of a worker
  if (ranks > kMostSlots) {
    return InvalidArgument(ranks, " ranks are more than the ", kMostSlots,
                           " that weft run starts on one machine; lower --ranks or ranks.max");
  }
  // Until the cluster is up, a signal only ends the wait for it.
  session.interrupts.SetHandler([](int) {});
  LocalClusterOptions options;
  options.programs = session.environment.programs;
  options.temporary = session.environment.temporary;
  options.checkpoint_root = checkpoint_root;
  options.slots = std::max<int>({1, ranks, static_cast<int>(std::thread::hardware_concurrency())});
  options.interrupted = [&session] { return session.interrupts.count() > 0; };
  return LocalCluster::Start(options);
}

std::string AbsolutePath(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

void DeclareJobFlags(CLI::App& app, JobFlags* flags) {
  app.add_option("job", flags->file, "Job file (YAML or JSON)")->required()->type_name("JOB");
  app.add_option("--set", flags->settings, "Replace a field of the job, such as train.steps=60")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--ranks", flags->ranks, "Run on exactly this many ranks")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
}

StatusOr<JobFile> LoadJob(const JobFlags& flags) {
  ASSIGN_OR_RETURN(JobFile job, LoadJobFile(flags.file, flags.settings));
  if (flags.ranks > 0) {
    v1::JobSpec& spec = job.spec;
    if (spec.lanes() == 0) {
      const int most = std::max({1, spec.ranks().min(), spec.ranks().max()});
      spec.set_lanes(std::max(most, flags.ranks));
    }
    spec.mutable_ranks()->set_min(flags.ranks);
    spec.mutable_ranks()->set_max(flags.ranks);
  }
  return job;
}

}  // namespace weft::cli
