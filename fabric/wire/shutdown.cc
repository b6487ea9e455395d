#include "fabric/wire/shutdown.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "absl/cleanup/cleanup.h"

namespace weft::wire {
namespace {

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void BlockShutdownSignals() {
  const sigset_t set = ShutdownSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

StatusOr<ShutdownCause> WaitForShutdown(int parent_pid) {
  const sigset_t set = ShutdownSet();
  const int signals = signalfd(-1, &set, SFD_CLOEXEC);
  if (signals < 0) return ErrnoStatus("signalfd", errno);
  auto close_signals = absl::MakeCleanup([signals] { close(signals); });
  int parent = -1;  // poll skips negative descriptors
  if (parent_pid > 0) {
    parent = static_cast<int>(syscall(SYS_pidfd_open, parent_pid, 0));
    if (parent < 0 && errno == ESRCH) return ShutdownCause::kParentGone;
    if (parent < 0) return ErrnoStatus(absl::StrCat("watch parent process ", parent_pid), errno);
  }
  auto close_parent = absl::MakeCleanup([parent] {
    if (parent >= 0) close(parent);
  });
  pollfd fds[] = {{signals, POLLIN, 0}, {parent, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) {
    if (errno != EINTR) return ErrnoStatus("poll for shutdown", errno);
  }
  return fds[0].revents != 0 ? ShutdownCause::kSignal : ShutdownCause::kParentGone;
}

}  // namespace weft::wire
