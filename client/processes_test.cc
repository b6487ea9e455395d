#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "client/child_process.h"
#include "client/interrupts.h"
#include "client/local_cluster.h"
#include "fabric/ckpt/atomic_file.h"

namespace weft {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(20);

std::string Folder(const std::string& name) {
  const std::string folder = testing::TempDir() + name;
  EXPECT_TRUE(ckpt::RemoveTree(folder).ok());
  EXPECT_TRUE(ckpt::MakeFolders(folder).ok());
  return folder;
}

StatusOr<std::unique_ptr<ChildProcess>> Shell(const std::string& script, const std::string& out) {
  return ChildProcess::Start({"/bin/sh", "-c", script}, out);
}

TEST(ChildProcess, Exit_IsDescribedAndOutputKept) {
  const std::string out = Folder("exit") + "/out";
  auto child = Shell("echo said; exit 3", out);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ((*child)->WaitFor(kLimit), "exit code 3");
  EXPECT_EQ(*ckpt::ReadFile(out), "said\n");
}

TEST(ChildProcess, SignalsBlockedHere_ReachTheChild) {
  Interrupts interrupts;  // blocks SIGTERM in this process
  auto child = Shell("kill -TERM $$; sleep 100", Folder("mask") + "/out");
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ((*child)->WaitFor(kLimit), "signal 15 (Terminated)");
}

TEST(ChildProcess, Terminate_IgnoredTerm_KillsTheWholeGroup) {
  const std::string folder = Folder("group");
  // The grandchild's id is written only once both ignore SIGTERM.
  auto child = Shell("trap '' TERM; sh -c 'echo $$ > " + folder + "/pid.tmp; mv " + folder +
                         "/pid.tmp " + folder + "/pid; sleep 100' & wait",
                     folder + "/out");
  ASSERT_TRUE(child.ok()) << child.status();
  int64_t grandchild = 0;
  for (int i = 0; i < 2000 && grandchild == 0; ++i) {
    (*child)->WaitFor(absl::Milliseconds(10));
    const auto text = ckpt::ReadFile(folder + "/pid");
    if (text.ok()) {
      ASSERT_TRUE(absl::SimpleAtoi(*text, &grandchild));
    }
  }
  ASSERT_GT(grandchild, 0);
  (*child)->Terminate(absl::Milliseconds(50));
  EXPECT_EQ((*child)->WaitFor(absl::ZeroDuration()), "signal 9 (Killed)");
  // Gone, or a zombie until the system's first process takes it.
  const auto status = ckpt::ReadFile("/proc/" + std::to_string(grandchild) + "/stat");
  EXPECT_TRUE(!status.ok() || status->find(") S ") == std::string::npos) << *status;
}

TEST(ChildProcess, AbsentProgram_IsAnError) {
  EXPECT_FALSE(ChildProcess::Start({"/no/such/program"}, "/dev/null").ok());
}

TEST(Interrupts, Signals_AreCounted) {
  Interrupts interrupts;
  absl::Notification first, second;
  interrupts.SetHandler([&](int nth) { (nth == 1 ? first : second).Notify(); });
  kill(getpid(), SIGINT);
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(kLimit));
  kill(getpid(), SIGTERM);
  ASSERT_TRUE(second.WaitForNotificationWithTimeout(kLimit));
  EXPECT_EQ(interrupts.count(), 2);
}

class LocalClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = Folder("cluster");
    options_.programs = folder_ + "/bin";
    options_.temporary = folder_ + "/tmp";
    ASSERT_TRUE(ckpt::MakeFolders(options_.programs).ok());
    ASSERT_TRUE(ckpt::MakeFolders(options_.temporary).ok());
  }
  void WriteProgram(const std::string& name, const std::string& script) {
    ASSERT_TRUE(
        ckpt::WriteFileAtomically(options_.programs + "/" + name, "#!/bin/sh\n" + script, 0755)
            .ok());
  }
  void ExpectNothingLeft() { EXPECT_TRUE(ckpt::ListFolder(options_.temporary)->empty()); }

  std::string folder_;
  LocalClusterOptions options_;
};

TEST_F(LocalClusterTest, AbsentPrograms_AreNamed) {
  const auto cluster = LocalCluster::Start(options_);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster.status().message().substr(0, 11), "no program ");
}

TEST_F(LocalClusterTest, CoordinatorThatEndsAtOnce_IsQuotedAndNothingIsLeft) {
  WriteProgram("weft-coordinator", "echo disk is on fire; exit 7\n");
  WriteProgram("weft-worker", "");
  const auto cluster = LocalCluster::Start(options_);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cluster.status().message(),
            "weft-coordinator ended with exit code 7; its last lines:\n  disk is on fire");
  ExpectNothingLeft();
}

TEST_F(LocalClusterTest, CoordinatorThatNeverListens_HitsTheDeadline) {
  WriteProgram("weft-coordinator", "sleep 100\n");
  WriteProgram("weft-worker", "");
  options_.start_limit = absl::Milliseconds(100);
  const auto cluster = LocalCluster::Start(options_);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kDeadlineExceeded);
  ExpectNothingLeft();
}

TEST_F(LocalClusterTest, InterruptDuringStart_EndsIt) {
  WriteProgram("weft-coordinator", "sleep 100\n");
  WriteProgram("weft-worker", "");
  options_.interrupted = [] { return true; };
  const auto cluster = LocalCluster::Start(options_);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kCancelled);
  ExpectNothingLeft();
}

}  // namespace
}  // namespace weft
