// weft run: a cluster of this command's own, one job, its end.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"

#include "client/cli/exit_code.h"
#include "client/cli/follow.h"
#include "client/cli/kernel_report.h"
#include "client/cli/summary.h"
#include "client/cli/verb.h"
#include "fabric/ckpt/atomic_file.h"
#include "fabric/ckpt/manifest.h"

namespace weft::cli {
namespace {

struct RunFlags {
  JobFlags job;
  std::string out = "runs";
  bool resume = false;
  bool fresh = false;
  std::string profile;  // steps; empty: none
};

// Renames `folder` to the first free <folder>.old-N, unless a run is writing to it.
Status MoveAside(Session& session, const std::string& folder) {
  ASSIGN_OR_RETURN(const auto claim, ckpt::FolderClaim::Take(folder, absl::ZeroDuration()));
  for (int n = 1;; ++n) {
    const std::string aside = absl::StrCat(folder, ".old-", n);
    struct stat info;
    if (lstat(aside.c_str(), &info) == 0) continue;
    if (std::rename(folder.c_str(), aside.c_str()) != 0) {
      return ErrnoStatus(absl::StrCat("rename ", folder, " to ", aside), errno);
    }
    session.printer.TalkLine(absl::StrCat("moved the earlier run to ", aside));
    return absl::OkStatus();
  }
}

// Sees that no earlier run's checkpoints are mixed up with this one's; true when they are to be
// moved aside.
StatusOr<bool> CheckFolder(const RunFlags& flags, const std::string& folder, v1::JobSpec* spec) {
  if (flags.resume) spec->mutable_checkpoint()->set_resume(v1::RESUME_NEWEST);
  if (spec->checkpoint().resume() == v1::RESUME_NEWEST && !flags.fresh) return false;
  const auto found = ckpt::ListCheckpoints(folder);
  if (found.status().code() == absl::StatusCode::kNotFound) return false;
  if (!found.ok()) return found.status();
  if (found->empty() || flags.fresh) return !found->empty();
  return absl::AlreadyExistsError(absl::StrCat(
      folder, " has ", found->size(),
      " checkpoint(s) of an earlier run; go on from the newest with --resume, move them aside with "
      "--fresh, or write elsewhere with --out DIR"));
}

// What Ctrl-C does: first save and end, then end at once.
class RunInterrupts {
 public:
  RunInterrupts(Session& session, LocalCluster& cluster, const std::string& id)
      : session_(session), cluster_(cluster), id_(id) {
    session.interrupts.SetHandler([this](int nth) { OnSignal(nth); });
    // A signal during start-up found no handler that could save.
    if (session.interrupts.count() > 0) OnSignal(1);
  }
  ~RunInterrupts() {
    // Further signals do nothing while the processes are ended: that has deadlines of its own.
    session_.interrupts.SetHandler([](int) {});
    if (cancel_.joinable()) cancel_.join();
  }

  bool aborted() const {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }

 private:
  void OnSignal(int nth) {
    absl::MutexLock lock(&mutex_);
    if (nth == 1 && !cancel_.joinable()) {
      session_.printer.TalkLine("\ninterrupted: saving a checkpoint; once more ends without it");
      // On a thread of its own, so that the next signal is heard while the call waits.
      cancel_ = std::thread([this] {
        const auto cancelled = cluster_.client().Cancel(id_, CancelMode::kSave);
        if (!cancelled.ok() && cancelled.status().code() != absl::StatusCode::kFailedPrecondition) {
          session_.printer.Error(cancelled.status());
        }
      });
    } else if (nth > 1) {
      aborted_ = true;
      cluster_.KillNow();
    }
  }

  Session& session_;
  LocalCluster& cluster_;
  const std::string id_;
  mutable absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread cancel_;
};

// The end of the logs of a job that failed; they go with the cluster.
void PrintLastLogs(Session& session, Client& client, const std::string& id) {
  v1::WatchLogsRequest request;
  request.set_id(id);
  request.set_rank(-1);
  request.set_tail(20);
  (void)client.StreamLogs(request, [&](const v1::WatchLogsResponse& line) {
    session.printer.TalkLine(absl::StrCat("  rank ", line.rank(), ": ", line.line()));
  });
}

Status Interrupted() {
  return absl::CancelledError(
      "interrupted; the steps since the last checkpoint are lost, and --resume goes on from it");
}

StatusOr<v1::Job> RunToEnd(Session& session, LocalCluster& cluster, const JobFile& file) {
  Client& client = cluster.client();
  const auto submitted = client.Submit(file.spec, MakeRequestId());
  if (!submitted.ok()) return file.Locate(submitted.status());
  RunInterrupts interrupts(session, cluster, submitted->id());
  FollowOptions options;
  options.away_limit = absl::Seconds(10);
  options.check = [&]() -> Status {
    if (interrupts.aborted()) return Interrupted();
    return cluster.Check();
  };
  auto job = Follow(session, client, submitted->id(), options);
  if (interrupts.aborted()) return Interrupted();
  if (job.ok() && job->state() == v1::JOB_STATE_FAILED) {
    PrintLastLogs(session, client, submitted->id());
  }
  return job;
}

Status SetProfile(const std::string& steps, v1::JobSpec* spec) {
  if (steps.empty()) return absl::OkStatus();
  constexpr int64_t kMostSteps = 1000;
  int64_t count = 0;
  if (!absl::SimpleAtoi(steps, &count) || count < 1 || count > kMostSteps) {
    return InvalidArgument("--profile=", steps, ": wants a number of steps from 1 to ", kMostSteps,
                           ", as in --profile=10");
  }
  spec->mutable_profile()->set_steps(count);
  return absl::OkStatus();
}

// The table of kernels of a job that left one.
void PrintProfile(Session& session, const v1::Job& job) {
  const std::string& folder = job.result().profile();
  if (folder.empty() || session.printer.json()) return;
  const auto text = ckpt::ReadFile(absl::StrCat(folder, "/kernels.json"));
  const StatusOr<KernelReport> report =
      text.ok() ? ReadKernelReport(*text) : StatusOr<KernelReport>(text.status());
  if (!report.ok()) {
    session.printer.TalkLine(absl::StrCat("no profile: ", report.status().message()));
    return;
  }
  session.printer.Line("");
  session.printer.Rows(report->table);
  session.printer.Line(report->summary);
  session.printer.Line(
      absl::StrCat("traces: ", folder, "/rank-*.trace.json (open in ", "https://ui.perfetto.dev)"));
}

StatusOr<int> RunJob(Session& session, const RunFlags& flags) {
  if (NamesCoordinator(session)) {
    return InvalidArgument(
        "weft run starts a coordinator of its own; for a running one use: weft submit JOB "
        "--follow");
  }
  if (flags.resume && flags.fresh) {
    return InvalidArgument("--resume and --fresh exclude each other; give one");
  }
  ASSIGN_OR_RETURN(JobFile file, LoadJob(flags.job));
  v1::JobSpec& spec = file.spec;
  RETURN_IF_ERROR(SetProfile(flags.profile, &spec));
  if (spec.name().empty()) {
    return InvalidArgument(file.Where("name"),
                           "name: no value; it names the checkpoint folder, as in 'name: first'");
  }
  if (spec.name().find('/') != std::string::npos || spec.name()[0] == '.') {
    return InvalidArgument(file.Where("name"), "name: '", spec.name(),
                           "' names a folder: write lower-case letters, digits and '-'");
  }
  const std::string root = AbsolutePath(flags.out);
  const std::string folder =
      spec.checkpoint().path().empty() ? root + "/" + spec.name() : spec.checkpoint().path();
  ASSIGN_OR_RETURN(const bool moves, CheckFolder(flags, folder, &spec));
  const int ranks = std::max(spec.ranks().min(), spec.ranks().max());
  ASSIGN_OR_RETURN(const auto cluster, StartCluster(session, ranks, root));
  if (moves) {
    // A job that is refused leaves the earlier run where it is.
    const auto good = cluster->client().Validate(spec);
    if (!good.ok()) return file.Locate(good.status());
    RETURN_IF_ERROR(MoveAside(session, folder));
  }
  ASSIGN_OR_RETURN(const v1::Job job, RunToEnd(session, *cluster, file));
  PrintSummary(session, job);
  PrintProfile(session, job);
  return session.interrupts.count() > 0 ? static_cast<int>(kInterrupted) : ExitCodeOf(job.state());
}

}  // namespace

VerbBody DeclareRun(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  DeclareJobFlags(app, &flags->job);
  app.add_option("--out", flags->out, "Folder for checkpoints, in <out>/<job name>")
      ->capture_default_str()
      ->type_name("DIR");
  app.add_flag("--profile{5}", flags->profile,
               "Record what each rank does in a few steps (--profile=STEPS): a trace a rank and a "
               "table of kernels, in <out>/<job name>/profile");
  app.add_flag("--resume", flags->resume, "Go on from the newest verified checkpoint");
  app.add_flag("--fresh", flags->fresh, "Move an earlier run's checkpoints aside first");
  return [flags](Session& session) -> StatusOr<int> {
    auto code = RunJob(session, *flags);
    if (!code.ok() && session.printer.json()) session.printer.Line(SummaryJson(code.status()));
    return code;
  };
}

}  // namespace weft::cli
