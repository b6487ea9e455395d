#include "tests/gpu/rank_processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace weft {
namespace {

double Milliseconds(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

// Ends without destructors of statics: a thread of NCCL may be left behind.
[[noreturn]] void RunChild(Board* board, int32_t rank,
                           const std::function<Status(int32_t, PhaseNotes&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PhaseNotes notes(board, rank);
  const Status status = body(rank, notes);
  if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int how = 0;
};

// Waits for all, noting the first death by a signal; what is left at the deadline is killed.
void Watch(std::vector<Child>& children, Board* board, Deadline deadline) {
  bool killed = false;
  while (true) {
    bool open = false;
    for (size_t rank = 0; rank < children.size(); ++rank) {
      Child& child = children[rank];
      if (child.ended) continue;
      if (waitpid(child.pid, &child.how, WNOHANG) != child.pid) {
        open = true;
        continue;
      }
      child.ended = true;
      int32_t nobody = 0;
      if (WIFSIGNALED(child.how)) {
        board->dead.compare_exchange_strong(nobody, static_cast<int32_t>(rank) + 1);
      }
    }
    if (!open) return;
    if (deadline.Expired() && !killed) {
      killed = true;
      for (const Child& child : children) {
        if (!child.ended) kill(child.pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::string Ending(const Child& child) {
  if (WIFSIGNALED(child.how)) return absl::StrCat("ended by signal ", WTERMSIG(child.how));
  return absl::StrCat("ended with ", WEXITSTATUS(child.how));
}

// One line for a phase: what the slowest rank took, or what the first failed one says.
bool PrintPhase(const std::string& title, const Board& board, int phase,
                const std::vector<Child>& children, int32_t victim) {
  double slowest = 0;
  std::string problem;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    const PhaseReport& report = board.reports[phase][rank];
    const int32_t state = report.state.load();
    slowest = std::max(slowest, report.milliseconds);
    if (state == 1 || (state == 0 && static_cast<int32_t>(rank) == victim)) continue;
    if (problem.empty()) {
      problem = absl::StrCat(
          "rank ", rank, ": ",
          state == 2 ? std::string(report.text) : "did not finish, " + Ending(children[rank]));
    }
  }
  std::printf("%s %s: %s (%.1f ms)%s%s\n", problem.empty() ? "PASS" : "FAIL", title.c_str(),
              board.names[phase], slowest, problem.empty() ? "" : ": ", problem.c_str());
  return problem.empty();
}

bool Print(const std::string& title, const Board& board, const std::vector<Child>& children,
           int32_t victim) {
  bool good = true;
  for (int phase = 0; phase < Board::kMostPhases && board.names[phase][0] != '\0'; ++phase) {
    good &= PrintPhase(title, board, phase, children, victim);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    const Child& child = children[rank];
    const bool expected = static_cast<int32_t>(rank) == victim
                              ? WIFSIGNALED(child.how) && WTERMSIG(child.how) == SIGKILL
                              : WIFEXITED(child.how) && WEXITSTATUS(child.how) == 0;
    if (expected) continue;
    good = false;
    std::printf("FAIL %s: rank %zu %s\n", title.c_str(), rank, Ending(child).c_str());
  }
  std::fflush(stdout);
  return good;
}

}  // namespace

Status PhaseNotes::Run(const std::string& name, absl::FunctionRef<Status()> phase) {
  const int index = phase_++;
  if (index >= Board::kMostPhases) return Internal("too many phases");
  // All ranks write the same.
  std::strncpy(board_->names[index], name.c_str(), sizeof(board_->names[index]) - 1);
  PhaseReport& report = board_->reports[index][rank_];
  const absl::Duration began = RealClock().Monotonic();
  const Status status = phase();
  report.milliseconds = Milliseconds(RealClock().Monotonic() - began);
  const std::string text = status.ToString();
  std::memcpy(report.text, text.data(), std::min(text.size(), sizeof(report.text) - 1));
  report.state = status.ok() ? 1 : 2;
  return status;
}

bool RunRanks(const std::string& title, int32_t ranks, int32_t victim, Deadline deadline,
              const std::function<Status(int32_t, PhaseNotes&)>& body) {
  void* const shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || ranks > Board::kMostRanks) {
    std::printf("FAIL %s: no memory for %d ranks\n", title.c_str(), ranks);
    return false;
  }
  auto* const board = static_cast<Board*>(shared);
  std::fflush(nullptr);
  std::vector<Child> children(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) RunChild(board, rank, body);
    Child& child = children[static_cast<size_t>(rank)];
    child.pid = pid;
    if (pid < 0) child = {.ended = true, .how = W_EXITCODE(1, 0)};
  }
  Watch(children, board, deadline);
  const bool good = Print(title, *board, children, victim);
  munmap(shared, sizeof(Board));
  return good;
}

Status PollUntil(const std::string& what, absl::Duration limit,
                 absl::FunctionRef<StatusOr<bool>()> done) {
  const Deadline deadline = Deadline::After(limit);
  while (true) {
    ASSIGN_OR_RETURN(const bool now, done());
    if (now) return absl::OkStatus();
    if (deadline.Expired()) return DeadlineExceeded("gave up waiting for ", what);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace weft
