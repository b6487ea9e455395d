// Child, Member and Outbox with real processes.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "worker/agent/child.h"
#include "worker/agent/member.h"
#include "worker/agent/outbox.h"

namespace weft::agent {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

struct Ended {
  ChildExit exit;
  std::vector<std::string> lines;
};

// Runs `script` as a child and waits for its end.
Ended RunScript(const std::string& script) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  Ended ended;
  absl::Notification gone;
  ChildOptions options;
  options.argv = {"/bin/sh", "-c", script};
  options.socket_fd = fds[1];
  options.on_line = [&](std::string line) { ended.lines.push_back(std::move(line)); };
  options.on_exit = [&](ChildExit exit) {
    ended.exit = exit;
    gone.Notify();
  };
  auto child = Child::Start(std::move(options));
  EXPECT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kLimit));
  child->reset();
  close(fds[0]);
  close(fds[1]);
  return ended;
}

TEST(Child, Exit_Table_CodeOrSignal) {
  EXPECT_EQ(RunScript("exit 0").exit.exit_code, 0);
  EXPECT_EQ(RunScript("exit 7").exit.exit_code, 7);
  EXPECT_EQ(RunScript("kill -KILL $$").exit.signal, SIGKILL);
  EXPECT_EQ(RunScript("kill -SEGV $$").exit.signal, SIGSEGV);
  // No one ran out of memory.
  EXPECT_FALSE(RunScript("kill -KILL $$").exit.out_of_memory);
  const Ended missing = RunScript("exec /no/such/program");
  EXPECT_EQ(missing.exit.exit_code, 127);
}

TEST(Child, Lines_OfBothStreamsComeWholeAndBounded) {
  const Ended ended =
      RunScript("echo one; echo two >&2; printf 'x%.0s' $(seq 20000); echo; printf 'no newline'");
  ASSERT_EQ(ended.lines.size(), 4u);
  EXPECT_EQ(ended.lines[0], "one");
  EXPECT_EQ(ended.lines[1], "two");
  EXPECT_EQ(ended.lines[2].size(), kMaxLineBytes + 6);
  EXPECT_EQ(ended.lines[3], "no newline");
}

TEST(Child, Descriptors_OnlyItsOwn) {
  // Opened without close-on-exec: what a careless library does.
  const int leak = open("/dev/null", O_RDONLY);
  const int high = fcntl(leak, F_DUPFD, 100);
  const Ended ended = RunScript("exec ls /proc/self/fd");
  close(leak);
  close(high);
  // 4 is the folder that is listed.
  EXPECT_EQ(ended.lines, (std::vector<std::string>{"0", "1", "2", "3", "4"}));
}

TEST(Child, End_TakesWhatItStartedAlong) {
  const Ended ended = RunScript("sleep 1000 & echo $!; exit 3");
  EXPECT_EQ(ended.exit.exit_code, 3);
  ASSERT_EQ(ended.lines.size(), 1u);
  // It was killed, which may take the kernel a moment.
  int pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ended.lines[0], &pid));
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid_fd < 0) return;  // gone
  pollfd watched{pid_fd, POLLIN, 0};
  EXPECT_EQ(poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(kLimit))), 1);
  close(pid_fd);
}

TEST(Child, Destructor_Kills) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  ChildExit seen;
  ChildOptions options;
  options.argv = {"/bin/sleep", "1000"};
  options.socket_fd = fds[1];
  options.on_line = [](std::string) {};
  options.on_exit = [&](ChildExit exit) { seen = exit; };
  auto child = Child::Start(std::move(options));
  ASSERT_TRUE(child.ok());
  child->reset();
  EXPECT_EQ(seen.signal, SIGKILL);
  close(fds[0]);
  close(fds[1]);
}

TEST(Outbox, Full_DropsTheOldestThatMayGo) {
  Outbox outbox(3);
  const auto log = [](const char* line) {
    v1::MemberMessage m;
    m.mutable_log()->set_line(line);
    return m;
  };
  v1::MemberMessage exited;
  exited.mutable_exited()->set_exit_code(1);
  outbox.Add(exited);
  for (const char* line : {"a", "b", "c"}) outbox.Add(log(line));
  EXPECT_TRUE(outbox.Take(absl::ZeroDuration())->has_exited());
  EXPECT_EQ(outbox.Take(absl::ZeroDuration())->log().line(), "b");
  outbox.Return(log("again"));
  EXPECT_EQ(outbox.Take(absl::ZeroDuration())->log().line(), "again");
  EXPECT_FALSE(outbox.WaitEmpty(absl::ZeroDuration()));
  EXPECT_EQ(outbox.Take(absl::ZeroDuration())->log().line(), "c");
  EXPECT_FALSE(outbox.Take(absl::ZeroDuration()).has_value());
  EXPECT_TRUE(outbox.WaitEmpty(absl::ZeroDuration()));
}

// ---- Members.

std::string FakeProgram() {
  return std::filesystem::absolute("worker/agent/fake_executor").string();
}

MemberOptions Options(const std::string& behaviour, Outbox* outbox) {
  MemberOptions options;
  options.start.mutable_spec()->mutable_member()->set_job(behaviour);
  options.start.mutable_spec()->mutable_member()->set_generation(2);
  options.program = FakeProgram();
  options.host = "127.0.0.1";
  options.outbox = outbox;
  return options;
}

// Everything said until the process is gone, log lines apart.
std::vector<v1::MemberMessage> Follow(
    Member& member, Outbox& outbox, const std::function<void()>& when_running = [] {}) {
  std::vector<v1::MemberMessage> said;
  while (said.empty() || !said.back().has_exited()) {
    std::optional<v1::MemberMessage> m = outbox.Take(kLimit);
    if (!m.has_value()) {
      ADD_FAILURE() << "nothing was said in time";
      return said;
    }
    if (m->has_log()) {
      EXPECT_EQ(m->log().line(), "in step 4");
      continue;
    }
    if (m->has_opened() && !m->opened().has_error()) member.Prepare({});
    if (m->has_prepared()) member.Run();
    if (m->has_report() && m->report().has_progress()) when_running();
    said.push_back(*std::move(m));
  }
  return said;
}

TEST(Member, Finish_SaysAllInOrder) {
  Outbox outbox(100);
  Member member(Options("finish", &outbox));
  const auto said = Follow(member, outbox);
  ASSERT_EQ(said.size(), 5u);
  EXPECT_EQ(said[0].opened().opened().endpoint(), "127.0.0.1:1");
  EXPECT_EQ(said[1].prepared().prepared().memory_bytes(), 5);
  EXPECT_EQ(said[2].report().progress().step(), 3);
  EXPECT_EQ(said[3].report().finished().steps(), 3);
  EXPECT_EQ(said[3].report().member().generation(), 2);
  EXPECT_EQ(said[4].exited().exit_code(), 0);
  EXPECT_EQ(said[4].exited().signal(), 0);
  EXPECT_EQ(said[4].exited().last_step(), 3);
  ASSERT_TRUE(member.WaitExited(kLimit));
  // A new stream hears what counts again.
  member.Resend();
  EXPECT_TRUE(outbox.Take(kLimit)->has_opened());
  EXPECT_TRUE(outbox.Take(kLimit)->has_prepared());
  EXPECT_TRUE(outbox.Take(kLimit)->report().has_finished());
  EXPECT_TRUE(outbox.Take(kLimit)->has_exited());
}

struct Ending {
  const char* behaviour;
  int exit_code;
  int signal;
  int64_t last_step;
  const char* said_before;
};

TEST(Member, Endings_Table) {
  const Ending endings[] = {
      {"crash", 0, SIGSEGV, 3, ""},
      {"exit7", 7, 0, 3, ""},
      {"fail", 1, 0, 3, "checkpoint is damaged"},
      {"open_crashes", 0, SIGSEGV, -1, ""},
  };
  for (const Ending& e : endings) {
    SCOPED_TRACE(e.behaviour);
    Outbox outbox(100);
    Member member(Options(e.behaviour, &outbox));
    const auto said = Follow(member, outbox);
    ASSERT_FALSE(said.empty());
    const v1::MemberExited& exited = said.back().exited();
    EXPECT_EQ(exited.exit_code(), e.exit_code);
    EXPECT_EQ(exited.signal(), e.signal);
    EXPECT_EQ(exited.last_step(), e.last_step);
    EXPECT_EQ(exited.error().message(), e.said_before);
    // A crash is not also reported as an error of the call that it broke.
    if (e.signal != 0) {
      for (const auto& m : said) {
        EXPECT_FALSE(m.opened().has_error() || m.report().has_failed());
      }
    }
  }
}

TEST(Member, Stop_WhileRunning_EndsCleanly) {
  Outbox outbox(100);
  Member member(Options("wait", &outbox));
  const auto said = Follow(member, outbox, [&] { member.Stop(v1::STOP_MODE_SAVE_AND_STOP); });
  EXPECT_TRUE(said[said.size() - 2].report().has_stopped());
  EXPECT_EQ(said.back().exited().exit_code(), 0);
}

TEST(Member, End_WhileRunning_Kills) {
  Outbox outbox(100);
  Member member(Options("wait", &outbox));
  const auto said = Follow(member, outbox, [&] { member.End(); });
  EXPECT_EQ(said.back().exited().signal(), SIGKILL);
}

TEST(Member, OpenFails_SaysWhyAndWaitsForItsEnd) {
  Outbox outbox(100);
  Member member(Options("open_fails", &outbox));
  std::optional<v1::MemberMessage> m = outbox.Take(kLimit);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->opened().error().message(), "no such data");
  EXPECT_FALSE(member.exited());
  member.End();
  EXPECT_TRUE(member.WaitExited(kLimit));
}

TEST(Member, NoProgram_IsAnExit) {
  Outbox outbox(100);
  MemberOptions options = Options("finish", &outbox);
  options.program = "/no/such/program";
  Member member(std::move(options));
  ASSERT_TRUE(member.WaitExited(kLimit));
  std::optional<v1::MemberMessage> m;
  while ((m = outbox.Take(absl::ZeroDuration())).has_value()) {
    if (m->has_exited()) {
      EXPECT_EQ(m->exited().exit_code(), 127);
    }
  }
}

}  // namespace
}  // namespace weft::agent
