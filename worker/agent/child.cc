#include "worker/agent/child.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/cleanup/cleanup.h"

#include "worker/agent/oom_count.h"

namespace weft::agent {
namespace {

// Between fork and exec only async-signal-safe calls: other threads may have held locks.
[[noreturn]] void BecomeExecutor(char* const* argv, int socket_fd, int shared_fd, int output_fd) {
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, 0);
  dup2(output_fd, 1);
  dup2(output_fd, 2);
  // All sources are above the targets, so no copy hits one that is still needed.
  dup2(socket_fd, kChildSocketFd);
  unsigned int first_unused = kChildSocketFd + 1;
  if (shared_fd >= 0) {
    dup2(shared_fd, kChildSharedMemoryFd);
    first_unused = kChildSharedMemoryFd + 1;
  }
  syscall(SYS_close_range, first_unused, ~0U, 0);
  execv(argv[0], argv);
  constexpr char kText[] = "cannot execute the worker program\n";
  [[maybe_unused]] const ssize_t n = write(2, kText, sizeof kText - 1);
  _exit(127);
}

// A copy with a number that no fixed target has.
int CopyHigh(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 16); }

// Cuts a byte stream into lines.
class LineCutter {
 public:
  explicit LineCutter(const std::function<void(std::string)>& on_line) : on_line_(on_line) {}

  void Add(const char* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      if (data[i] == '\n') {
        Flush();
      } else if (line_.size() < kMaxLineBytes) {
        line_ += data[i];
      } else {
        cut_ = true;
      }
    }
  }
  void Flush() {
    if (cut_) line_ += " [cut]";
    on_line_(std::exchange(line_, ""));
    cut_ = false;
  }
  bool empty() const { return line_.empty(); }

 private:
  const std::function<void(std::string)>& on_line_;
  std::string line_;
  bool cut_ = false;
};

// Reads what is there. False at the end of the stream.
bool Drain(int fd, LineCutter& lines) {
  char buffer[4096];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) {
      lines.Add(buffer, static_cast<size_t>(got));
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

}  // namespace

StatusOr<std::unique_ptr<Child>> Child::Start(ChildOptions options) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus("pipe for an executor", errno);
  const int socket_fd = CopyHigh(options.socket_fd);
  const int output_fd = CopyHigh(pipe_fds[1]);
  const int shared_fd = options.shared_memory_fd >= 0 ? CopyHigh(options.shared_memory_fd) : -1;
  close(pipe_fds[1]);
  auto closer = absl::MakeCleanup([=] {
    for (const int fd : {socket_fd, output_fd, shared_fd}) {
      if (fd >= 0) close(fd);
    }
  });
  std::vector<char*> argv;
  for (std::string& arg : options.argv) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t pid = socket_fd < 0 || output_fd < 0 ? -1 : fork();
  if (pid < 0) {
    const int reason = errno;
    close(pipe_fds[0]);
    return ErrnoStatus("start an executor process", reason);
  }
  if (pid == 0) BecomeExecutor(argv.data(), socket_fd, shared_fd, output_fd);
  // Also here: whoever is first, the group is there when Kill may be called.
  setpgid(pid, pid);
  fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid_fd < 0) {
    const int reason = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    close(pipe_fds[0]);
    return ErrnoStatus("watch an executor process", reason);
  }
  return std::unique_ptr<Child>(new Child(pid, pid_fd, pipe_fds[0], std::move(options)));
}

Child::Child(pid_t pid, int pid_fd, int output, ChildOptions options)
    : pid_(pid), pid_fd_(pid_fd), oom_kills_before_(CountOomKills()), options_(std::move(options)) {
  watcher_ = std::thread([this, output] { Watch(output); });
}

Child::~Child() {
  Kill();
  watcher_.join();
  close(pid_fd_);
}

void Child::Kill() {
  // The descriptor names this process even when its number is in use again; while it answers, so is
  // the group's.
  if (syscall(SYS_pidfd_send_signal, pid_fd_, 0, nullptr, 0) != 0) return;
  kill(-pid_, SIGKILL);
  syscall(SYS_pidfd_send_signal, pid_fd_, SIGKILL, nullptr, 0);
}

void Child::Watch(int output) {
  LineCutter lines(options_.on_line);
  bool open = true;
  while (true) {
    pollfd fds[] = {{pid_fd_, POLLIN, 0}, {open ? output : -1, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (open && fds[1].revents != 0) open = Drain(output, lines);
    if (fds[0].revents != 0) break;
  }
  const ChildExit exit = Reap();
  if (open) Drain(output, lines);
  if (!lines.empty()) lines.Flush();
  close(output);
  options_.on_exit(exit);
}

ChildExit Child::Reap() {
  siginfo_t info = {};
  // First without reaping, so that its group still has its number when the rest of it is killed.
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  kill(-pid_, SIGKILL);
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  ChildExit exit;
  if (info.si_code == CLD_EXITED) {
    exit.exit_code = info.si_status;
    return exit;
  }
  exit.signal = info.si_status;
  exit.out_of_memory =
      exit.signal == SIGKILL && oom_kills_before_ >= 0 && CountOomKills() > oom_kills_before_;
  return exit;
}

}  // namespace weft::agent
