#include "worker/exec/executor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "fabric/ckpt/atomic_file.h"
#include "tests/support/gpt_plan.h"
#include "worker/core/device/cpu_device.h"
#include "worker/exec/sampler.h"

namespace weft {
namespace {

class ExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/execXXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { EXPECT_TRUE(ckpt::RemoveTree(root_).ok()); }

  ExecSpec Spec(int64_t steps, int32_t ranks = 1, int32_t rank = 0) {
    testing::GptPlanSpec plan;
    plan.model = {.layers = 1, .heads = 2, .dim = 16, .context = 12, .vocab = 12};
    plan.optimizer.kind = OptimizerSpec::Kind::kAdamW;
    plan.optimizer.lr = 1e-2;
    plan.optimizer.total = 20;
    plan.batch = 12;
    plan.lanes = 4;
    plan.ranks = ranks;
    ExecSpec spec;
    spec.rank = rank;
    spec.job_name = "test";
    spec.spec_json = "{}";
    spec.numerics_json = R"({"instructionSet":"x"})";
    auto made = testing::MakeGptPlan(plan);
    EXPECT_TRUE(made.ok()) << made.status();
    spec.plan = *made;
    spec.plan.numerics.instruction_set = CurrentInstructionSet();
    spec.steps = steps;
    data::ReverseOptions data;
    data.symbols = 8;
    data.max_length = 4;
    data.eval_samples = 5;
    data.context = 12;
    spec.data = data;
    spec.checkpoint.path = root_ + "/test";
    return spec;
  }

  // All ranks of one run, as threads with an executor each.
  static StatusOr<RunResult> Run(const std::vector<ExecSpec>& specs, Executor::Transport transport,
                                 const ReportSink& sink) {
    const int32_t size = static_cast<int32_t>(specs.size());
    Executor::Group group;
    group.secret = "secret";
    group.transport = transport;
    group.shared_memory_fd = memfd_create("test", MFD_CLOEXEC);
    const absl::Cleanup closer = [&] { close(group.shared_memory_fd); };
    EXPECT_EQ(ftruncate(group.shared_memory_fd, comm::SharedMemoryBytes(size)), 0);
    std::vector<std::unique_ptr<Executor>> executors;
    for (const ExecSpec& spec : specs) {
      executors.push_back(std::make_unique<Executor>(spec));
      ASSIGN_OR_RETURN(const Executor::Opened opened, executors.back()->Open("127.0.0.1"));
      group.endpoints.push_back(opened.endpoint);
    }
    std::vector<StatusOr<RunResult>> results(specs.size(), Internal("not run"));
    std::vector<std::thread> threads;
    for (size_t r = 0; r < executors.size(); ++r) {
      threads.emplace_back([&, r] {
        const auto prepared = executors[r]->Prepare(group);
        results[r] =
            prepared.ok() ? executors[r]->Run(sink) : StatusOr<RunResult>(prepared.status());
      });
    }
    for (std::thread& t : threads) t.join();
    for (const auto& result : results) {
      if (!result.ok()) return result.status();
      EXPECT_EQ(result->state_digest, results[0]->state_digest);
    }
    return results[0];
  }
  static StatusOr<RunResult> Run(
      const ExecSpec& spec, const ReportSink& sink = [](const Report&) {}) {
    return Run(std::vector<ExecSpec>{spec}, Executor::Transport::kSharedMemory, sink);
  }

  std::string root_;
};

TEST_F(ExecutorTest, Ranks_EachReportStartUpAndCounters) {
  absl::Mutex mutex;
  int started = 0, counted = 0;
  const auto result =
      Run({Spec(3, 2, 0), Spec(3, 2, 1)}, Executor::Transport::kSharedMemory,
          [&](const Report& report) {
            absl::MutexLock lock(&mutex);
            if (const auto* s = std::get_if<StartUpReport>(&report)) {
              ++started;
              std::vector<std::string> names;
              for (const auto& phase : s->phases) names.push_back(phase.name);
              EXPECT_EQ(names, (std::vector<std::string>{"device", "data", "wait", "communicator",
                                                         "bind", "state", "first step"}));
            }
            if (const auto* c = std::get_if<CountersReport>(&report)) {
              ++counted;
              EXPECT_GT(c->runner.arena_bytes, 0);
              EXPECT_GT(c->runner.pool_bytes, c->runner.arena_bytes);
              EXPECT_GT(c->host_peak_bytes, 0);
              EXPECT_EQ(c->runner.captures, 0);
            }
          });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(started, 2);
  EXPECT_EQ(counted, 4);  // after the first step and at the end
}

TEST_F(ExecutorTest, Profile_ChangesNoBitAndLeavesTraceAndTable) {
  std::vector<ExecSpec> without = {Spec(12, 2, 0), Spec(12, 2, 1)};
  for (ExecSpec& spec : without) spec.checkpoint.path = root_ + "/plain";
  const auto plain = Run(without, Executor::Transport::kSharedMemory, [](const Report&) {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  std::vector<ExecSpec> specs = {Spec(12, 2, 0), Spec(12, 2, 1)};
  for (ExecSpec& spec : specs) {
    spec.profile = ProfileSettings{.steps = 3, .after = 2, .folder = root_ + "/test/profile"};
    spec.eval_every = 6;
  }
  const auto result = Run(specs, Executor::Transport::kSharedMemory, [](const Report&) {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->state_digest, plain->state_digest);
  EXPECT_EQ(result->profile, root_ + "/test/profile");
  const auto table = ckpt::ReadFile(result->profile + "/kernels.json");
  ASSERT_TRUE(table.ok()) << table.status();
  const auto report = nlohmann::json::parse(*table);
  EXPECT_EQ(report["first_step"], 2);
  EXPECT_EQ(report["steps"], 3);
  double share = 0;
  for (const auto& row : report["kernels"]) {
    share += row["share"].get<double>();
    EXPECT_GT(row["launches_per_step"], 0);
  }
  EXPECT_NEAR(share, 1, 1e-6);
  for (const char* name : {"/rank-0.trace.json", "/rank-1.trace.json"}) {
    const auto text = ckpt::ReadFile(result->profile + name);
    ASSERT_TRUE(text.ok()) << text.status();
    std::set<std::string> host;
    const auto trace = nlohmann::json::parse(*text);
    for (const auto& event : trace["traceEvents"]) {
      if (event.value("cat", "") == "host") host.insert(event["name"]);
    }
    std::set<std::string> expected = {"submit", "confirm", "data", "all-reduce", "evaluation"};
    if (name[6] == '0') expected.insert("checkpoint");
    EXPECT_EQ(host, expected) << name;
  }
}

TEST_F(ExecutorTest, Run_ReportsEveryLossOnceAndResult) {
  ExecSpec spec = Spec(12);
  spec.checkpoint.every = 5;
  spec.eval_every = 6;
  std::vector<float> losses;
  std::vector<int64_t> evals, checkpoints;
  const auto result = Run(spec, [&](const Report& report) {
    if (const auto* p = std::get_if<ProgressReport>(&report)) {
      losses.insert(losses.end(), p->losses.begin(), p->losses.end());
      EXPECT_EQ(p->step, static_cast<int64_t>(losses.size()));
    }
    if (const auto* e = std::get_if<EvalReport>(&report)) evals.push_back(e->step);
    if (const auto* c = std::get_if<CheckpointReport>(&report)) checkpoints.push_back(c->step);
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(losses.size(), 12u);
  EXPECT_EQ(evals, (std::vector<int64_t>{6, 12}));
  EXPECT_EQ(checkpoints, (std::vector<int64_t>{5, 10, 12}));
  EXPECT_EQ(result->steps, 12);
  EXPECT_EQ(result->first_loss, losses.front());
  EXPECT_EQ(result->losses, losses);
  EXPECT_EQ(result->losses_every, 1);
  EXPECT_EQ(result->final_loss, losses.back());
  EXPECT_GT(result->peak_memory_bytes, 0);
  EXPECT_EQ(result->tokens_per_step, 12 * 12);
}

TEST_F(ExecutorTest, StopAndSave_ThenResumeOnMoreRanks_EndsInTheSameState) {
  ExecSpec undisturbed = Spec(20);
  undisturbed.checkpoint.path = root_ + "/undisturbed";
  const auto expected = Run(undisturbed);
  ASSERT_TRUE(expected.ok()) << expected.status();

  {  // the executor's claim on the folder ends with it
    ExecSpec first = Spec(20);
    Executor executor(first);
    ASSERT_TRUE(executor.Open("127.0.0.1").ok());
    ASSERT_TRUE(executor.Prepare({}).ok());
    executor.Stop(StopMode::kSaveAndStop);
    const auto stopped = executor.Run([](const Report&) {});
    ASSERT_TRUE(stopped.ok()) << stopped.status();
    EXPECT_TRUE(stopped->stopped);
    EXPECT_EQ(stopped->steps, 1);
  }

  for (const auto transport : {Executor::Transport::kSharedMemory, Executor::Transport::kTcp}) {
    std::vector<ExecSpec> later;
    for (int32_t rank = 0; rank < 3; ++rank) {
      later.push_back(Spec(20, 3, rank));
      later.back().checkpoint.resume = true;
    }
    const auto resumed = Run(later, transport, [](const Report&) {});
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->state_digest, expected->state_digest);
    ASSERT_TRUE(ckpt::RemoveTree(root_ + "/test/step-000000000020").ok());
  }
}

TEST_F(ExecutorTest, Resume_WithOtherNumerics_IsRefusedWithBoth) {
  ASSERT_TRUE(Run(Spec(3)).ok());
  ExecSpec other = Spec(6);
  other.checkpoint.resume = true;
  other.numerics_json = R"({"instructionSet":"y"})";
  const auto result = Run(other);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(result.status().message().find(R"({"instructionSet":"x"})"), absl::string_view::npos);
  other.any_numerics = true;
  const auto fast = Run(other);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->steps, 6);
}

TEST_F(ExecutorTest, Resume_OfAnotherModel_NamesTheTensor) {
  ASSERT_TRUE(Run(Spec(3)).ok());
  ExecSpec other = Spec(6);
  other.checkpoint.resume = true;
  other.plan.program.parameters[0].shape = Shape{11, 16};
  const auto result = Run(other);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("'wte' is f32[12, 16] in the checkpoint"),
            absl::string_view::npos)
      << result.status();
}

TEST_F(ExecutorTest, Open_WithFolderThatCannotBeMade_FailsBeforeTheFirstStep) {
  ASSERT_TRUE(ckpt::WriteFileAtomically(root_ + "/test", "a file").ok());
  Executor executor(Spec(1));
  const auto opened = executor.Open("127.0.0.1");
  EXPECT_FALSE(opened.ok());
}

TEST_F(ExecutorTest, Open_WithFolderOfAnotherRun_NamesIt) {
  const auto other = ckpt::FolderClaim::Take(root_ + "/test", absl::ZeroDuration());
  ASSERT_TRUE(other.ok()) << other.status();
  Executor executor(Spec(1));
  const auto opened = executor.Open("127.0.0.1");
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(opened.status().message().find(root_ + "/test"), std::string::npos) << opened.status();
}

TEST_F(ExecutorTest, Open_WithCheckpointsOfAnEarlierRun_IsRefusedUnlessItResumes) {
  ASSERT_TRUE(Run(Spec(3)).ok());
  ExecSpec again = Spec(3);
  EXPECT_EQ(Executor(again).Open("127.0.0.1").status().code(), absl::StatusCode::kAlreadyExists);
  again.checkpoint.resume = true;
  EXPECT_TRUE(Executor(again).Open("127.0.0.1").ok());
}

TEST_F(ExecutorTest, Abort_EndsTheRun) {
  Executor executor(Spec(1000000));
  ASSERT_TRUE(executor.Open("127.0.0.1").ok());
  ASSERT_TRUE(executor.Prepare({}).ok());
  StatusOr<RunResult> result = Internal("not run");
  std::thread run(
      [&] { result = executor.Run([&](const Report&) { executor.Stop(StopMode::kAbort); }); });
  run.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
}

TEST_F(ExecutorTest, BytePairs_AreSampledWithoutTheText) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? "over and over " : "again ";
  const std::string path = root_ + "/text.txt";
  ASSERT_TRUE(ckpt::WriteFileAtomically(path, text).ok());
  testing::GptPlanSpec small;
  small.model = {.layers = 1, .heads = 2, .dim = 16, .context = 12, .vocab = 300};
  small.optimizer.lr = 0.1;
  small.batch = 12;
  small.lanes = 4;
  const auto plan = testing::MakeGptPlan(small);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExecSpec trained = Spec(3);
  trained.plan.program = plan->program;
  data::TextOptions options;
  options.path = path;
  options.tokens = data::TextTokens::kBpe;
  options.bpe_vocab = options.vocab = 300;
  options.context = 12;
  trained.data = options;
  const auto result = Run(trained);
  ASSERT_TRUE(result.ok()) << result.status();

  ASSERT_EQ(unlink(path.c_str()), 0);
  ExecSpec sampled = Spec(0);
  PartitionRequest request;
  auto predict = BuildGpt(small.model, 1, GraphMode::kPredict);
  ASSERT_TRUE(predict.ok()) << predict.status();
  request.predict = *std::move(predict);
  auto program = MakeProgram(BuiltinOpSet(), request);
  ASSERT_TRUE(program.ok()) << program.status();
  sampled.plan.program = *std::move(program);
  sampled.data = std::monostate();
  sampled.sample.emplace();
  sampled.sample->checkpoint = result->checkpoint;
  sampled.sample->prompt = "over";
  sampled.sample->tokens = 8;
  sampled.sample->text = options;
  const auto written = Run(sampled);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->text.substr(0, 4), "over");
  EXPECT_GE(written->text.size(), 12u);
}

TEST(DrawToken, Settings_ChooseAsDocumented) {
  const std::vector<float> logits = {1, 3, 3, 2};
  EXPECT_EQ(DrawToken(logits, 0, 0, 0.9), 1);     // the likeliest, lowest id on ties
  EXPECT_EQ(DrawToken(logits, 1, 1, 0.99), 1);    // top 1 leaves no choice
  EXPECT_EQ(DrawToken(logits, 1, 2, 0.99), 2);    // of the top 2, the second half
  EXPECT_EQ(DrawToken(logits, 1, 0, 0.9999), 0);  // the unlikeliest at the far end
  EXPECT_EQ(DrawToken(logits, 100, 0, 0.6), 3);   // nearly uniform: ids 1, 2, 3, 0 in order
}

}  // namespace
}  // namespace weft
