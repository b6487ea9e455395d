#include "client/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"

#include "fabric/base/clock.h"

extern char** environ;

namespace weft {
namespace {

std::string DescribeEnd(int status) {
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

}  // namespace

StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& argv,
                                                            const std::string& output_file) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  auto free_files = absl::MakeCleanup([&] { posix_spawn_file_actions_destroy(&files); });
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output_file.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  auto free_attributes = absl::MakeCleanup([&] { posix_spawnattr_destroy(&attributes); });
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &files, &attributes, arguments.data(), environ);
  if (error != 0) return ErrnoStatus(absl::StrCat("start ", argv[0]), error);
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) {
    const int open_error = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return ErrnoStatus("pidfd_open (Linux 5.3 or newer is needed)", open_error);
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, fd));
}

ChildProcess::~ChildProcess() {
  KillNow();
  WaitFor(absl::InfiniteDuration());
  close(pid_fd_);
}

std::string ChildProcess::WaitFor(absl::Duration limit) {
  const Deadline deadline = Deadline::After(limit);
  while (ended_.empty()) {
    pollfd wait = {pid_fd_, POLLIN, 0};
    const absl::Duration left = std::min(deadline.Remaining(), absl::Hours(1));
    const int ready = poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready > 0) {
      // Its group cannot get this number again before the child is reaped: end what it left behind.
      kill(-pid_, SIGKILL);
      int status = 0;
      while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
      }
      ended_ = DescribeEnd(status);
    } else if (ready == 0 && deadline.Expired()) {
      break;
    }
  }
  return ended_;
}

void ChildProcess::Terminate(absl::Duration grace) {
  if (!WaitFor(absl::ZeroDuration()).empty()) return;
  syscall(SYS_pidfd_send_signal, pid_fd_, SIGTERM, nullptr, 0);
  if (!WaitFor(grace).empty()) return;
  KillNow();
  WaitFor(absl::InfiniteDuration());
}

void ChildProcess::KillNow() {
  // Through the descriptor: the number may belong to another process once this one was reaped.
  if (syscall(SYS_pidfd_send_signal, pid_fd_, 0, nullptr, 0) == 0) kill(-pid_, SIGKILL);
}

}  // namespace weft
