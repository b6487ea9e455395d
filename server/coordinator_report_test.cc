// What the coordinator tells of its jobs: events, logs, start-up times.
#include "server/coordinator_case.h"

namespace weft {
namespace {

TEST_F(CoordinatorTest, Events_BeyondTheBound_LeaveAGap) {
  FakeWorker w(c_.get(), 1, "w", 1);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  const auto ids = RunGang(w, 1, &id);
  int wakes = 0;
  const int64_t subscription = c_->Subscribe(id, [&] { ++wakes; });
  for (int step = 1; step <= 50; ++step) w.Progress(ids[0], step);
  EXPECT_EQ(wakes, 50);
  c_->Unsubscribe(subscription);
  w.Progress(ids[0], 51);
  EXPECT_EQ(wakes, 50);
  const auto page = c_->ReadEvents(id, 0, 100);
  ASSERT_TRUE(page.ok());
  EXPECT_FALSE(page->ended);
  ASSERT_EQ(page->events.size(), 21u);
  EXPECT_TRUE(page->events[0].gap());
  EXPECT_EQ(page->events.back().progress().step(), 51);
}

TEST_F(CoordinatorTest, Logs_TailAndRank) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  const auto ids = RunGang(w, 2, &id);
  for (int i = 0; i < 6; ++i) {
    v1::MemberMessage m;
    *m.mutable_log()->mutable_member() = ids[i % 2];
    m.mutable_log()->set_line(absl::StrCat("line ", i));
    w.Say(m);
  }
  EXPECT_EQ(c_->ReadLogs(id, -1, 0, 100)->lines.size(), 6u);
  EXPECT_EQ(c_->ReadLogs(id, 1, 0, 100)->lines.size(), 3u);
  const auto tail = c_->FindLogTail(id, 1, 2);
  ASSERT_TRUE(tail.ok());
  const auto lines = c_->ReadLogs(id, 1, *tail, 100)->lines;
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].line, "line 3");
}

TEST_F(CoordinatorTest, StartUp_PhasesOfEveryRank_AddUpToTheTimeSinceSubmit) {
  const auto job = Submit(Spec("gang", 2, 2));
  ASSERT_TRUE(job.ok()) << job.status();
  clock_.Advance(absl::Milliseconds(30));
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  c_->Tick();
  const auto ids = Start(w, 2);
  clock_.Advance(absl::Milliseconds(50));
  BringUp(w, ids);
  clock_.Advance(absl::Milliseconds(20));
  w.Started(ids[1], 60);
  clock_.Advance(absl::Milliseconds(5));
  w.Started(ids[0], 66);
  const v1::Job running = Get(job->id());
  ASSERT_EQ(running.startup_size(), 2);
  std::map<int, double> totals;
  for (const v1::StartUp& startup : running.startup()) {
    std::map<std::string, double> ms;
    double sum = 0;
    for (const v1::PhaseTime& phase : startup.phases()) {
      ms[phase.name()] = phase.ms();
      sum += phase.ms();
    }
    EXPECT_DOUBLE_EQ(sum, startup.total_ms());
    EXPECT_DOUBLE_EQ(ms["queue"], 30);
    totals[startup.rank()] = startup.total_ms();
    if (startup.rank() == 1) {
      EXPECT_DOUBLE_EQ(ms["messages"], 10);
    }
  }
  EXPECT_EQ(running.startup(0).rank(), 0);
  EXPECT_DOUBLE_EQ(totals[1], 100);
  EXPECT_DOUBLE_EQ(totals[0], 105);
}

TEST_F(CoordinatorTest, StartUpAndCounters_OfAllRanks_AreEvents) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  const auto ids = RunGang(w, 2, &id);
  w.Started(ids[1], 1);
  w.Counted(ids[1], 4096);
  const auto page = c_->ReadEvents(id, 0, 100);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_GE(page->events.size(), 2u);
  const v1::JobEvent& counters = page->events.back();
  const v1::JobEvent& startup = page->events[page->events.size() - 2];
  EXPECT_EQ(startup.startup().rank(), 1);
  EXPECT_EQ(counters.counters().rank(), 1);
  EXPECT_EQ(counters.counters().pool_bytes(), 4096);
}

}  // namespace
}  // namespace weft
