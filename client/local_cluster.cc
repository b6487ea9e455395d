#include "client/local_cluster.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "fabric/base/clock.h"
#include "fabric/ckpt/atomic_file.h"
#include "fabric/wire/channel.h"

namespace weft {
namespace {

constexpr char kCoordinator[] = "weft-coordinator";
constexpr char kWorker[] = "weft-worker";
constexpr char kLock[] = "/lock";

std::string FolderPrefix() { return absl::StrCat("weft-run-", getuid(), "-"); }

// Takes the lock that the owner of `folder` holds for its life; -1 when it lives.
int TryLock(const std::string& folder, int flags) {
  const int fd = open((folder + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

// Removes what commands left behind that were killed: folders of this user whose lock nobody holds.
void RemoveAbandoned(const std::string& temporary) {
  const auto names = ckpt::ListFolder(temporary);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, FolderPrefix())) continue;
    const std::string folder = absl::StrCat(temporary, "/", name);
    struct stat info;
    constexpr time_t kYoung = 60;  // a command may have made it and not yet locked it
    if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != getuid() ||
        time(nullptr) - info.st_mtime < kYoung) {
      continue;
    }
    const int fd = TryLock(folder, 0);
    if (fd < 0) continue;
    (void)ckpt::RemoveTree(folder);
    close(fd);
  }
}

Status CheckProgram(const std::string& folder, const char* program) {
  const std::string path = absl::StrCat(folder, "/", program);
  if (access(path.c_str(), X_OK) == 0) return absl::OkStatus();
  return NotFound("no program ", path, "; weft starts ", program,
                  " from the folder that weft itself is in: build all three with "
                  "deploy/build.sh, or copy them side by side");
}

}  // namespace

StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const LocalClusterOptions& options) {
  RETURN_IF_ERROR(CheckProgram(options.programs, kCoordinator));
  RETURN_IF_ERROR(CheckProgram(options.programs, kWorker));
  RemoveAbandoned(options.temporary);
  std::string folder = absl::StrCat(options.temporary, "/", FolderPrefix(), "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return ErrnoStatus(absl::StrCat("make a temporary folder in ", options.temporary), errno);
  }
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  cluster->folder_ = folder;
  cluster->lock_fd_ = TryLock(folder, O_CREAT | O_EXCL);
  if (cluster->lock_fd_ < 0) return ErrnoStatus(absl::StrCat("lock ", folder), errno);
  RETURN_IF_ERROR(cluster->StartCoordinator());
  RETURN_IF_ERROR(cluster->StartWorker());
  RETURN_IF_ERROR(cluster->WaitForWorker());
  return cluster;
}

LocalCluster::~LocalCluster() {
  if (worker_ != nullptr) worker_->Terminate(options_.stop_grace);
  if (coordinator_ != nullptr) coordinator_->Terminate(options_.stop_grace);
  client_.reset();
  worker_.reset();
  coordinator_.reset();
  if (!folder_.empty()) (void)ckpt::RemoveTree(folder_);
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status LocalCluster::StartCoordinator() {
  std::vector<std::string> argv = {
      absl::StrCat(options_.programs, "/", kCoordinator),
      absl::StrCat("--state_dir=", StateDir()),
      absl::StrCat("--parent_pid=", getpid()),
      absl::StrCat("--log_level=", options_.log_level),
  };
  if (!options_.checkpoint_root.empty()) {
    argv.push_back(absl::StrCat("--checkpoint_root=", options_.checkpoint_root));
  }
  ASSIGN_OR_RETURN(coordinator_,
                   ChildProcess::Start(argv, absl::StrCat(folder_, "/", kCoordinator, ".log")));
  const Deadline deadline = Deadline::After(options_.start_limit);
  while (true) {
    const auto endpoint = wire::ReadEndpoint(StateDir());
    if (endpoint.ok()) break;
    // Waiting for its end is also the pause between two looks.
    if (!coordinator_->WaitFor(absl::Milliseconds(5)).empty()) return Check();
    RETURN_IF_ERROR(KeepWaiting(deadline, kCoordinator));
  }
  ASSIGN_OR_RETURN(ClientOptions client, Client::Locate("", "", StateDir()));
  client_ = std::make_unique<Client>(client);
  return absl::OkStatus();
}

Status LocalCluster::KeepWaiting(const Deadline& deadline, const char* program) {
  if (options_.interrupted()) return absl::CancelledError("interrupted");
  if (!deadline.Expired()) return absl::OkStatus();
  return DeadlineExceeded(program, " was not ready within ",
                          absl::FormatDuration(options_.start_limit), LastLines(program));
}

Status LocalCluster::StartWorker() {
  const std::vector<std::string> argv = {
      absl::StrCat(options_.programs, "/", kWorker),    absl::StrCat("--state_dir=", StateDir()),
      absl::StrCat("--slots=", options_.slots),         absl::StrCat("--parent_pid=", getpid()),
      absl::StrCat("--log_level=", options_.log_level),
  };
  ASSIGN_OR_RETURN(worker_, ChildProcess::Start(argv, absl::StrCat(folder_, "/", kWorker, ".log")));
  return absl::OkStatus();
}

Status LocalCluster::WaitForWorker() {
  const Deadline deadline = Deadline::After(options_.start_limit);
  while (true) {
    auto workers = client_->Workers();
    if (!workers.ok()) {
      RETURN_IF_ERROR(Check());
      return workers.status();
    }
    if (!workers->empty()) return absl::OkStatus();
    if (!worker_->WaitFor(absl::Milliseconds(10)).empty()) return Check();
    RETURN_IF_ERROR(KeepWaiting(deadline, kWorker));
  }
}

Status LocalCluster::Check() {
  for (const auto& [child, program] :
       {std::pair{coordinator_.get(), kCoordinator}, std::pair{worker_.get(), kWorker}}) {
    if (child == nullptr) continue;
    const std::string end = child->WaitFor(absl::ZeroDuration());
    if (!end.empty()) {
      return Unavailable(program, " ended with ", end, LastLines(program));
    }
  }
  return absl::OkStatus();
}

void LocalCluster::KillNow() {
  if (worker_ != nullptr) worker_->KillNow();
  if (coordinator_ != nullptr) coordinator_->KillNow();
}

std::string LocalCluster::LastLines(const std::string& program) const {
  constexpr size_t kLines = 8;
  const auto text = ckpt::ReadFile(absl::StrCat(folder_, "/", program, ".log"));
  if (!text.ok() || text->empty()) return "; it wrote nothing";
  std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  lines.erase(lines.begin(), lines.end() - static_cast<long>(std::min(kLines, lines.size())));
  return absl::StrCat("; its last lines:\n  ", absl::StrJoin(lines, "\n  "));
}

}  // namespace weft
