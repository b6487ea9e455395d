#include "client/interrupts.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "fabric/base/check.h"

namespace weft {
namespace {

constexpr int kInterrupted = 130;
constexpr int kPatience = 3;

}  // namespace

Interrupts::Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  WEFT_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Serve(); });
}

Interrupts::~Interrupts() {
  eventfd_write(stop_fd_, 1);
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void Interrupts::SetHandler(std::function<void(int)> handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}

void Interrupts::ClearHandler() { SetHandler(nullptr); }

int Interrupts::count() const {
  absl::MutexLock lock(&count_mutex_);
  return count_;
}

void Interrupts::Serve() {
  while (true) {
    pollfd wait[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(wait, 2, -1) < 0) continue;
    if (wait[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof info) != sizeof info) continue;
    int nth = 0;
    {
      absl::MutexLock lock(&count_mutex_);
      nth = ++count_;
    }
    absl::MutexLock lock(&mutex_);
    if (handler_ == nullptr || nth >= kPatience) _exit(kInterrupted);
    handler_(nth);
  }
}

}  // namespace weft
