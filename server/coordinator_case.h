// What tests of the coordinator share: a plan that is none, workers that say what a test wants, and
// a coordinator on a clock that the test advances.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fabric/base/error_detail.h"
#include "fabric/wire/status_proto.h"
#include "server/coordinator.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace weft {

using ::weft::testing::FakeClock;
using ::weft::testing::IsStatus;

inline v1::JobSpec Spec(const std::string& name, int32_t min_ranks = 1, int32_t max_ranks = 1) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_ranks()->set_min(min_ranks);
  spec.mutable_ranks()->set_max(max_ranks);
  return spec;
}

inline Planning FakePlanning() {
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

}  // namespace weft
