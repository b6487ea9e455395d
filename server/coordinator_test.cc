#include "server/coordinator.h"

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "fabric/base/error_detail.h"
#include "fabric/wire/status_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace weft {
namespace {

using ::weft::testing::FakeClock;
using ::weft::testing::IsStatus;

v1::JobSpec Spec(const std::string& name, int32_t min_ranks = 1, int32_t max_ranks = 1) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_ranks()->set_min(min_ranks);
  spec.mutable_ranks()->set_max(max_ranks);
  return spec;
}

Planning FakePlanning() {
  Planning planning;
  planning.admit = [](const v1::JobSpec& spec) -> StatusOr<v1::JobSpec> {
    if (spec.name() == "bad") return InvalidArgument("name: 'bad' is bad");
    return spec;
  };
  planning.plan = [](const PlanQuestion& q) -> StatusOr<v1::Plan> {
    if (q.spec.name() == "unplannable" && !q.workers.empty()) {
      return FailedPrecondition("no worker has avx512");
    }
    v1::Plan plan;
    plan.set_ranks(q.ranks);
    plan.mutable_numerics()->set_instruction_set(q.numerics != nullptr
                                                     ? q.numerics->instruction_set()
                                                 : q.workers.empty() ? ""
                                                                     : "avx2");
    return plan;
  };
  return planning;
}

// A worker that keeps the commands it gets, and says what the test wants.
class FakeWorker final : public state::CommandSink {
 public:
  FakeWorker(Coordinator* coordinator, int64_t connection, std::string id, int32_t slots)
      : coordinator_(coordinator), connection_(connection) {
    facts.set_worker(std::move(id));
    facts.set_incarnation(7);
    facts.set_slots(slots);
    facts.set_cores(4);
    facts.set_host("127.0.0.1");
  }

  Status Register() { return coordinator_->Register(connection_, facts, this); }
  void Send(const v1::MemberCommand& command) override { commands.push_back(command); }
  void Say(const v1::MemberMessage& message) { coordinator_->Handle(connection_, message); }
  void Disconnect() { coordinator_->Disconnect(connection_); }
  void Beat() { EXPECT_TRUE(coordinator_->Heartbeat(facts.worker(), facts.incarnation())); }

  // Commands of a kind since the last call.
  std::vector<v1::MemberCommand> Take(v1::MemberCommand::KindCase kind) {
    std::vector<v1::MemberCommand> taken;
    std::erase_if(commands, [&](const v1::MemberCommand& c) {
      if (c.kind_case() == kind) taken.push_back(c);
      return c.kind_case() == kind;
    });
    return taken;
  }

  void Opened(const v1::MemberId& id, const std::string& digest = "10:abc") {
    v1::MemberMessage m;
    *m.mutable_opened()->mutable_member() = id;
    m.mutable_opened()->mutable_opened()->set_endpoint(
        absl::StrCat("127.0.0.1:", 5000 + id.rank()));
    m.mutable_opened()->mutable_opened()->set_data_digest(digest);
    Say(m);
  }
  void Prepared(const v1::MemberId& id, int64_t start_step = 0) {
    v1::MemberMessage m;
    *m.mutable_prepared()->mutable_member() = id;
    m.mutable_prepared()->mutable_prepared()->set_start_step(start_step);
    Say(m);
  }
  void Progress(const v1::MemberId& id, int64_t step) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    m.mutable_report()->mutable_progress()->set_step(step);
    m.mutable_report()->mutable_progress()->set_loss(1.0 / static_cast<double>(step));
    Say(m);
  }
  void Started(const v1::MemberId& id, double bind_ms) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    v1::PhaseTime* phase = m.mutable_report()->mutable_startup()->add_phases();
    phase->set_name("bind");
    phase->set_ms(bind_ms);
    Say(m);
  }
  void Counted(const v1::MemberId& id, int64_t pool_bytes) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    m.mutable_report()->mutable_counters()->set_pool_bytes(pool_bytes);
    Say(m);
  }
  void Finished(const v1::MemberId& id, int64_t peak = 1) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    m.mutable_report()->mutable_finished()->set_steps(9);
    m.mutable_report()->mutable_finished()->set_peak_memory_bytes(peak);
    Say(m);
  }
  void Stopped(const v1::MemberId& id) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    m.mutable_report()->mutable_stopped()->set_steps(5);
    Say(m);
  }
  void Failed(const v1::MemberId& id, const Status& status) {
    v1::MemberMessage m;
    *m.mutable_report()->mutable_member() = id;
    *m.mutable_report()->mutable_failed() = wire::ToProto(status);
    Say(m);
  }
  void Exited(const v1::MemberId& id, int exit_code = 0, int signal = 0) {
    v1::MemberMessage m;
    *m.mutable_exited()->mutable_member() = id;
    m.mutable_exited()->set_exit_code(exit_code);
    m.mutable_exited()->set_signal(signal);
    m.mutable_exited()->set_last_step(-1);
    Say(m);
  }

  v1::Registration facts;
  std::vector<v1::MemberCommand> commands;

 private:
  Coordinator* const coordinator_;
  const int64_t connection_;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() {
    folder_ = ::testing::TempDir() + "/coordinator_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    Restart();
  }
  ~CoordinatorTest() override { std::filesystem::remove_all(folder_); }

  void Restart() {
    c_.reset();
    CoordinatorOptions options;
    options.database = folder_ + "/weft.db";
    options.checkpoint_root = folder_ + "/checkpoints";
    options.clock = &clock_;
    options.planning = FakePlanning();
    options.max_events_per_job = 20;
    auto opened = Coordinator::Open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    c_ = *std::move(opened);
  }

  StatusOr<v1::Job> Submit(const v1::JobSpec& spec, const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return c_->Submit(request);
  }

  v1::Job Get(const std::string& id) {
    const auto job = c_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.value_or(v1::Job());
  }

  std::vector<v1::MemberId> Start(FakeWorker& w, size_t expected) {
    std::vector<v1::MemberId> ids;
    for (const auto& command : w.Take(v1::MemberCommand::kStart)) {
      ids.push_back(command.start().spec().member());
    }
    EXPECT_EQ(ids.size(), expected);
    return ids;
  }

  // Takes members through open and prepare, as their worker does.
  void BringUp(FakeWorker& w, const std::vector<v1::MemberId>& ids) {
    for (const auto& id : ids) w.Opened(id);
    EXPECT_EQ(w.Take(v1::MemberCommand::kPrepare).size(), ids.size());
    for (const auto& id : ids) w.Prepared(id);
    EXPECT_EQ(w.Take(v1::MemberCommand::kRun).size(), ids.size());
  }

  // A job that runs on all `slots` of a worker of its own.
  std::vector<v1::MemberId> RunGang(FakeWorker& w, int32_t ranks, std::string* id) {
    const auto job = Submit(Spec("gang", ranks, ranks));
    EXPECT_TRUE(job.ok()) << job.status();
    *id = job->id();
    c_->Tick();
    auto ids = Start(w, static_cast<size_t>(ranks));
    BringUp(w, ids);
    EXPECT_EQ(Get(*id).state(), v1::JOB_STATE_RUNNING);
    return ids;
  }

  std::string folder_;
  FakeClock clock_;
  std::unique_ptr<Coordinator> c_;
};

const Status kPeerGone = [] {
  ErrorDetail detail;
  detail.action = ErrorAction::kRebuildComm;
  return WithDetail(Unavailable("peer rank 1 is gone"), detail);
}();

TEST_F(CoordinatorTest, Submit_BadSpec_IsRefusedAndNotStored) {
  EXPECT_THAT(Submit(Spec("bad")), IsStatus(absl::StatusCode::kInvalidArgument, "'bad' is bad"));
  EXPECT_EQ(c_->List({})->jobs_size(), 0);
}

TEST_F(CoordinatorTest, Submit_ValidateOnly_StoresNothing) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Spec("a");
  request.set_validate_only(true);
  const auto job = c_->Submit(request);
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->id(), "");
  EXPECT_EQ(c_->List({})->jobs_size(), 0);
}

TEST_F(CoordinatorTest, Submit_SameRequestId_GivesTheFirstAnswerAlsoAfterARestart) {
  const auto first = Submit(Spec("a"), "r1");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Submit(Spec("a"), "r1")->id(), first->id());
  EXPECT_THAT(Submit(Spec("b"), "r1"), IsStatus(absl::StatusCode::kAlreadyExists, "another spec"));
  Restart();
  EXPECT_EQ(Submit(Spec("a"), "r1")->id(), first->id());
  EXPECT_NE(Submit(Spec("a"), "r2")->id(), first->id());
  EXPECT_THAT(Submit(Spec("a"), std::string(65, 'x')),
              IsStatus(absl::StatusCode::kInvalidArgument, "65 bytes"));
}

TEST_F(CoordinatorTest, List_Pages_NewestFirst) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.begin(), Submit(Spec("a"))->id());
  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::vector<std::string> seen;
  do {
    const auto page = c_->List(request);
    ASSERT_TRUE(page.ok());
    EXPECT_LE(page->jobs_size(), 2);
    for (const auto& job : page->jobs()) seen.push_back(job.id());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, ids);
  request.set_page_token("b-3");
  EXPECT_THAT(c_->List(request), IsStatus(absl::StatusCode::kInvalidArgument, "page_token"));
  request.set_page_token("");
  request.set_page_size(-1);
  EXPECT_THAT(c_->List(request), IsStatus(absl::StatusCode::kInvalidArgument, "negative"));
}

TEST_F(CoordinatorTest, Gang_StartsWholeOrNotAtAll) {
  FakeWorker a(c_.get(), 1, "a", 2), b(c_.get(), 2, "b", 1);
  ASSERT_TRUE(a.Register().ok());
  const std::string id = Submit(Spec("g", 3, 3))->id();
  c_->Tick();
  EXPECT_TRUE(a.Take(v1::MemberCommand::kStart).empty());
  EXPECT_EQ(Get(id).reason(), "waits for 3 slots; all workers together have 2");
  ASSERT_TRUE(b.Register().ok());
  c_->Tick();
  const auto on_a = a.Take(v1::MemberCommand::kStart);
  const auto on_b = b.Take(v1::MemberCommand::kStart);
  ASSERT_EQ(on_a.size(), 2u);
  ASSERT_EQ(on_b.size(), 1u);
  // Contiguous ranks a worker; two workers need TCP, so no shared memory.
  EXPECT_EQ(on_a[1].start().spec().member().rank(), 1);
  EXPECT_EQ(on_b[0].start().spec().member().rank(), 2);
  EXPECT_EQ(on_a[1].start().local_index(), 1);
  EXPECT_EQ(on_a[0].start().local_count(), 2);
  EXPECT_EQ(on_a[0].start().shared_memory_bytes(), 0);
  EXPECT_EQ(on_a[0].start().spec().threads(), 2);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_PREPARING);
  // The next job waits until the slots are back.
  const std::string next = Submit(Spec("h"))->id();
  c_->Tick();
  EXPECT_EQ(Get(next).reason(), "waits for 1 free slot; 0 of 3 are free");
}

TEST_F(CoordinatorTest, Job_RunsToItsEnd) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  const std::string id = Submit(Spec("g", 2, 2))->id();
  c_->Tick();
  const auto ids = Start(w, 2);
  for (const auto& m : ids) w.Opened(m);
  const auto prepare = w.Take(v1::MemberCommand::kPrepare);
  ASSERT_EQ(prepare.size(), 2u);
  const v1::PrepareRequest& request = prepare[0].prepare().request();
  EXPECT_EQ(request.transport(), v1::TRANSPORT_SHM);
  EXPECT_EQ(request.secret().size(), 64u);
  EXPECT_EQ(request.endpoints(1), "127.0.0.1:5001");
  for (const auto& m : ids) w.Prepared(m);
  EXPECT_EQ(w.Take(v1::MemberCommand::kRun).size(), 2u);
  w.Progress(ids[0], 3);
  w.Progress(ids[1], 3);
  EXPECT_EQ(Get(id).step(), 3);
  w.Finished(ids[0], 10);
  w.Finished(ids[1], 20);
  w.Exited(ids[0]);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
  w.Exited(ids[1]);
  const v1::Job done = Get(id);
  EXPECT_EQ(done.state(), v1::JOB_STATE_DONE);
  EXPECT_EQ(done.result().peak_memory_bytes(), 20);
  EXPECT_EQ(c_->ListWorkers().workers(0).slots_used(), 0);
  // Queued, preparing, running, one progress though two ranks reported, done.
  const auto page = c_->ReadEvents(id, 0, 100);
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(page->ended);
  ASSERT_EQ(page->events.size(), 5u);
  EXPECT_EQ(page->events[3].progress().step(), 3);
  EXPECT_EQ(page->events[4].state().state(), v1::JOB_STATE_DONE);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(page->events[i].sequence(), static_cast<int64_t>(i + 1));
  // What comes after the end changes nothing.
  w.Failed(ids[0], Internal("late"));
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_DONE);
}

TEST_F(CoordinatorTest, Data_DiffersBetweenRanks_IsRefusedByName) {
  FakeWorker w(c_.get(), 1, "w", 3);
  ASSERT_TRUE(w.Register().ok());
  const std::string id = Submit(Spec("g", 3, 3))->id();
  c_->Tick();
  const auto ids = Start(w, 3);
  w.Opened(ids[0], "10:aa");
  w.Opened(ids[1], "11:bb");
  w.Opened(ids[2], "10:aa");
  const v1::Job job = Get(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(job.reason().find("ranks 0, 2 have 10:aa; rank 1 has 11:bb"), std::string::npos)
      << job.reason();
  EXPECT_EQ(w.Take(v1::MemberCommand::kEnd).size(), 3u);
}

TEST_F(CoordinatorTest, Plan_NotPossibleOnTheseWorkers_FailsTheJob) {
  FakeWorker w(c_.get(), 1, "w", 1);
  ASSERT_TRUE(w.Register().ok());
  const std::string id = Submit(Spec("unplannable"))->id();
  c_->Tick();
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Get(id).reason(), "no worker has avx512");
  EXPECT_TRUE(w.Take(v1::MemberCommand::kEnd).empty());
  EXPECT_EQ(c_->ListWorkers().workers(0).slots_used(), 0);
}

// ---- Failures. Each row: what members do, and the cause that the job names.

struct Failure {
  const char* name;
  std::function<void(FakeWorker&, const std::vector<v1::MemberId>&)> happens;
  const char* reason;
  int32_t rank;
  absl::StatusCode code;
};

TEST_F(CoordinatorTest, Failure_Table_NamesTheTrueCause) {
  const Failure failures[] = {
      {"killed, then survivors complain",
       [](FakeWorker& w, const auto& ids) {
         w.Exited(ids[1], 0, SIGKILL);
         w.Failed(ids[0], kPeerGone);
       },
       "rank 1 on worker w was killed by SIGKILL after step 4", 1, absl::StatusCode::kUnavailable},
      {"survivors complain first",
       [](FakeWorker& w, const auto& ids) {
         w.Failed(ids[0], kPeerGone);
         w.Exited(ids[0], 1);
         w.Exited(ids[1], 0, SIGSEGV);
       },
       "rank 1 on worker w was killed by SIGSEGV after step 4", 1, absl::StatusCode::kInternal},
      {"a named error",
       [](FakeWorker& w, const auto& ids) {
         w.Failed(ids[1], kPeerGone);
         w.Failed(ids[0], DataLoss("shard is damaged"));
       },
       "rank 0: shard is damaged", 0, absl::StatusCode::kDataLoss},
      {"exit without a word", [](FakeWorker& w, const auto& ids) { w.Exited(ids[0], 3); },
       "rank 0 on worker w exited with code 3 after step 4", 0, absl::StatusCode::kInternal},
      {"clean exit too early", [](FakeWorker& w, const auto& ids) { w.Exited(ids[0], 0); },
       "rank 0 on worker w exited before the job's end after step 4", 0,
       absl::StatusCode::kInternal},
      {"only consequences", [](FakeWorker& w, const auto& ids) { w.Failed(ids[0], kPeerGone); },
       "rank 0: peer rank 1 is gone", 0, absl::StatusCode::kUnavailable},
      {"finished, then crashed",
       [](FakeWorker& w, const auto& ids) {
         w.Finished(ids[1]);
         w.Exited(ids[1], 0, SIGABRT);
       },
       "rank 1 on worker w was killed by SIGABRT after step 4", 1, absl::StatusCode::kInternal},
  };
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  for (const Failure& f : failures) {
    SCOPED_TRACE(f.name);
    std::string id;
    const auto ids = RunGang(w, 2, &id);
    w.Progress(ids[0], 4);
    w.Progress(ids[1], 4);
    f.happens(w, ids);
    clock_.Advance(absl::Milliseconds(300));
    w.Beat();
    c_->Tick();
    const v1::Job job = Get(id);
    EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
    EXPECT_EQ(job.reason(), f.reason);
    EXPECT_EQ(job.error().code(), static_cast<int>(f.code));
    EXPECT_EQ(job.error().detail().rank(), f.rank);
    EXPECT_EQ(job.error().detail().job(), id);
    EXPECT_EQ(job.error().detail().step(), 4);
    EXPECT_EQ(w.Take(v1::MemberCommand::kEnd).size(), 2u);
    // Slots are back only when the processes are.
    w.Exited(ids[0], 0, SIGKILL);
    w.Exited(ids[1], 0, SIGKILL);
    EXPECT_EQ(c_->ListWorkers().workers(0).slots_used(), 0);
  }
}

TEST_F(CoordinatorTest, Failure_WhileOpening_IsNamed) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  const std::string id = Submit(Spec("g", 2, 2))->id();
  c_->Tick();
  const auto ids = Start(w, 2);
  v1::MemberMessage m;
  *m.mutable_opened()->mutable_member() = ids[1];
  *m.mutable_opened()->mutable_error() = wire::ToProto(NotFound("no file input.txt"));
  w.Say(m);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Get(id).reason(), "rank 1: no file input.txt");
}

TEST_F(CoordinatorTest, Silence_LosesTheWorkerAndNamesIt) {
  FakeWorker a(c_.get(), 1, "a", 1), b(c_.get(), 2, "b", 1);
  ASSERT_TRUE(a.Register().ok());
  ASSERT_TRUE(b.Register().ok());
  const std::string id = Submit(Spec("g", 2, 2))->id();
  c_->Tick();
  const auto on_a = Start(a, 1), on_b = Start(b, 1);
  a.Opened(on_a[0]);
  b.Opened(on_b[0]);
  a.Prepared(on_a[0]);
  b.Prepared(on_b[0]);
  ASSERT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
  // b's stream breaks; a's rank soon says that its peer is gone, which is not the cause.
  b.Disconnect();
  a.Failed(on_a[0], kPeerGone);
  for (int i = 0; i < 19; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    a.Beat();
    c_->Tick();
    ASSERT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING) << i;
  }
  clock_.Advance(absl::Milliseconds(101));
  a.Beat();
  c_->Tick();
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Get(id).reason(),
            "rank 1 on worker b was lost before its first step: no heartbeat of its worker for 2s");
  EXPECT_FALSE(c_->Heartbeat("b", 7));
  EXPECT_EQ(c_->ListWorkers().workers_size(), 1);
}

TEST_F(CoordinatorTest, StaleGeneration_IsRefusedAndEnded) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  auto ids = RunGang(w, 2, &id);
  v1::MemberId stale = ids[0];
  stale.set_generation(ids[0].generation() - 1);
  w.Progress(stale, 1000);
  EXPECT_EQ(Get(id).step(), 0);
  w.Failed(stale, Internal("old"));
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
  const auto end = w.Take(v1::MemberCommand::kEnd);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].end().member().generation(), stale.generation());
  // Ranks that there are not, and jobs that there are not.
  v1::MemberId wrong = ids[0];
  wrong.set_rank(-1);
  w.Progress(wrong, 7);
  wrong.set_rank(99);
  w.Exited(wrong, 0, SIGKILL);
  wrong.set_job("nobody");
  w.Finished(wrong);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorTest, MessagesOfAnotherWorker_DoNotCount) {
  FakeWorker w(c_.get(), 1, "w", 2), other(c_.get(), 2, "z", 1);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  const auto ids = RunGang(w, 2, &id);
  ASSERT_TRUE(other.Register().ok());
  other.Exited(ids[0], 0, SIGKILL);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorTest, Restart_RunningJob_GoesBackToTheQueueAndResumes) {
  std::string id;
  std::vector<v1::MemberId> ids;
  int64_t last_sequence = 0;
  {
    FakeWorker w(c_.get(), 1, "w", 2);
    ASSERT_TRUE(w.Register().ok());
    ids = RunGang(w, 2, &id);
    w.Progress(ids[0], 4);
    last_sequence = c_->ReadEvents(id, 0, 100)->events.back().sequence();
    Restart();
  }
  v1::Job job = Get(id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(job.generation(), 2);
  // Numbers never run twice, also where progress was forgotten.
  const auto events = c_->ReadEvents(id, last_sequence, 100)->events;
  ASSERT_GE(events.size(), 2u);
  EXPECT_TRUE(events[0].gap());
  EXPECT_EQ(events[1].state().state(), v1::JOB_STATE_QUEUED);
  EXPECT_GT(events[1].sequence(), last_sequence);

  // Another worker does not get it while the first may still run its ranks.
  FakeWorker other(c_.get(), 1, "z", 2);
  ASSERT_TRUE(other.Register().ok());
  c_->Tick();
  EXPECT_EQ(Get(id).reason(), "waits for worker w, which may still run its ranks");
  FakeWorker w(c_.get(), 2, "w", 2);
  for (const auto& member : ids) *w.facts.add_members() = member;
  ASSERT_TRUE(w.Register().ok());
  EXPECT_EQ(w.Take(v1::MemberCommand::kEnd).size(), 2u);
  c_->Tick();
  EXPECT_EQ(Get(id).reason(), "waits for its earlier rank 0 to end");
  w.Exited(ids[0], 0, SIGKILL);
  w.Exited(ids[1], 0, SIGKILL);
  c_->Tick();
  auto starts = w.Take(v1::MemberCommand::kStart);
  if (starts.empty()) starts = other.Take(v1::MemberCommand::kStart);
  ASSERT_EQ(starts.size(), 2u);
  const v1::MemberSpec& spec = starts[0].start().spec();
  EXPECT_TRUE(spec.resume());
  EXPECT_EQ(spec.member().generation(), 2);
  EXPECT_EQ(spec.plan().numerics().instruction_set(), "avx2");
}

TEST_F(CoordinatorTest, Restart_WorkerThatStaysAway_IsNotWaitedForForever) {
  std::string id;
  {
    FakeWorker w(c_.get(), 1, "w", 1);
    ASSERT_TRUE(w.Register().ok());
    RunGang(w, 1, &id);
    Restart();
  }
  FakeWorker other(c_.get(), 1, "z", 1);
  ASSERT_TRUE(other.Register().ok());
  c_->Tick();
  EXPECT_TRUE(other.Take(v1::MemberCommand::kStart).empty());
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    other.Beat();
  }
  c_->Tick();
  EXPECT_EQ(other.Take(v1::MemberCommand::kStart).size(), 1u);
}

TEST_F(CoordinatorTest, Reattach_SaysCommandsAgainAndMissesLostMembers) {
  FakeWorker w(c_.get(), 1, "w", 2);
  ASSERT_TRUE(w.Register().ok());
  std::string id;
  const auto ids = RunGang(w, 2, &id);
  w.Disconnect();
  FakeWorker again(c_.get(), 2, "w", 2);
  for (const auto& member : ids) *again.facts.add_members() = member;
  ASSERT_TRUE(again.Register().ok());
  EXPECT_EQ(again.Take(v1::MemberCommand::kRun).size(), 2u);
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_RUNNING);
  again.Disconnect();
  FakeWorker third(c_.get(), 3, "w", 2);
  *third.facts.add_members() = ids[0];
  ASSERT_TRUE(third.Register().ok());
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Get(id).error().detail().rank(), 1);
}

TEST_F(CoordinatorTest, Cancel_Table_ByState) {
  FakeWorker w(c_.get(), 1, "w", 1);
  const std::string queued = Submit(Spec("q"))->id();
  EXPECT_EQ(c_->Cancel(queued, v1::STOP_MODE_STOP)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(c_->Cancel(queued, v1::STOP_MODE_STOP),
              IsStatus(absl::StatusCode::kFailedPrecondition, "has ended: cancelled"));
  EXPECT_THAT(c_->Cancel("nobody", v1::STOP_MODE_STOP),
              IsStatus(absl::StatusCode::kNotFound, "nobody"));

  ASSERT_TRUE(w.Register().ok());
  const std::string preparing = Submit(Spec("p"))->id();
  c_->Tick();
  const auto ids = Start(w, 1);
  EXPECT_EQ(c_->Cancel(preparing, v1::STOP_MODE_STOP)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(w.Take(v1::MemberCommand::kEnd).size(), 1u);
  w.Exited(ids[0], 0, SIGKILL);

  std::string running;
  const auto members = RunGang(w, 1, &running);
  EXPECT_EQ(c_->Cancel(running, v1::STOP_MODE_SAVE_AND_STOP)->state(), v1::JOB_STATE_RUNNING);
  const auto stop = w.Take(v1::MemberCommand::kStop);
  ASSERT_EQ(stop.size(), 1u);
  EXPECT_EQ(stop[0].stop().mode(), v1::STOP_MODE_SAVE_AND_STOP);
  w.Stopped(members[0]);
  w.Exited(members[0]);
  EXPECT_EQ(Get(running).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Get(running).reason(), "cancelled after step 5");
  EXPECT_EQ(Get(running).result().steps(), 5);

  std::string stuck;
  RunGang(w, 1, &stuck);
  ASSERT_TRUE(c_->Cancel(stuck, v1::STOP_MODE_STOP).ok());
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    w.Beat();
  }
  c_->Tick();
  EXPECT_EQ(Get(stuck).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(w.Take(v1::MemberCommand::kEnd).empty());
}

TEST_F(CoordinatorTest, SameCheckpointFolder_IsUsedByOneJobAtATime) {
  FakeWorker w(c_.get(), 1, "w", 4);
  ASSERT_TRUE(w.Register().ok());
  const std::string first = Submit(Spec("same"))->id();
  c_->Tick();
  Start(w, 1);
  const std::string second = Submit(Spec("same"))->id();
  const std::string third = Submit(Spec("other"))->id();
  c_->Tick();
  EXPECT_EQ(Get(second).reason(),
            "waits for job " + first + ", which uses the same checkpoint folder");
  EXPECT_EQ(Get(third).state(), v1::JOB_STATE_PREPARING);
}

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
