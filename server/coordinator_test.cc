#include "server/coordinator.h"

#include <csignal>

#include "server/coordinator_case.h"

namespace weft {
namespace {

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

}  // namespace
}  // namespace weft
