#include "client/cli/summary.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft::cli {
namespace {

v1::Job DoneJob() {
  v1::Job job;
  job.set_id("first-abcde");
  job.mutable_spec()->set_name("first");
  job.set_state(v1::JOB_STATE_DONE);
  job.set_ranks(2);
  v1::JobResult* result = job.mutable_result();
  result->set_steps(700);
  result->set_first_loss(3.5);
  result->set_final_loss(0.25);
  for (const float loss : {3.5f, 2.0f, 0.25f}) result->add_losses(loss);
  result->set_losses_every(350);
  result->set_median_step_ms(20);
  result->set_train_seconds(14);
  result->set_tokens_per_step(3840);
  result->set_peak_memory_bytes(50 << 20);
  result->set_state_digest("abc");
  result->set_checkpoint("/runs/first/step-000000000700");
  result->mutable_eval()->set_accuracy(0.997);
  result->mutable_eval()->set_targets(12345);
  return job;
}

TEST(SummaryJson, DoneJob_HasEveryFieldOnOneLine) {
  const std::string line = SummaryJson(DoneJob());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["state"], "done");
  EXPECT_EQ(json["steps"], 700);
  EXPECT_EQ(json["first_loss"], 3.5);
  EXPECT_EQ(json["final_loss"], 0.25);
  EXPECT_EQ(json["losses"], nlohmann::json({3.5, 2.0, 0.25}));
  EXPECT_EQ(json["losses_every"], 350);
  EXPECT_EQ(json["eval"]["accuracy"], 0.997);
  EXPECT_EQ(json["median_step_ms"], 20);
  EXPECT_EQ(json["train_seconds"], 14);
  EXPECT_EQ(json["tokens_per_s"], 192000);
  EXPECT_EQ(json["peak_memory_bytes"], 50 << 20);
  EXPECT_EQ(json["state_digest"], "abc");
  EXPECT_EQ(json["checkpoint"], "/runs/first/step-000000000700");
  EXPECT_FALSE(json.contains("error"));
}

void AddStartUp(v1::Job* job, int rank, double wait_ms) {
  v1::StartUp* startup = job->add_startup();
  startup->set_rank(rank);
  startup->set_total_ms(100 + wait_ms);
  for (const auto& [name, ms] : {std::pair{"queue", 0.5}, {"bind", 99.5}, {"wait", wait_ms}}) {
    startup->add_phases()->set_name(name);
    startup->mutable_phases()->rbegin()->set_ms(ms);
  }
}

TEST(SummaryJson, StartUp_HasThePhasesOfEachRankInOrder) {
  v1::Job job = DoneJob();
  AddStartUp(&job, 0, 20);
  AddStartUp(&job, 1, 40);
  const auto startup = nlohmann::json::parse(SummaryJson(job))["startup"];
  ASSERT_EQ(startup.size(), 2u);
  EXPECT_EQ(startup[1]["rank"], 1);
  EXPECT_EQ(startup[1]["total_ms"], 140);
  EXPECT_EQ(startup[1]["phases"][1]["name"], "bind");
  EXPECT_EQ(startup[1]["phases"][1]["ms"], 99.5);
}

TEST(StartUpTable, Ranks_HaveARowEach) {
  v1::Job job = DoneJob();
  EXPECT_TRUE(StartUpTable(job).header.empty());
  AddStartUp(&job, 0, 40);
  AddStartUp(&job, 1, 20);
  EXPECT_EQ(FormatTable(StartUpTable(job), true),
            "RANK  QUEUE  BIND  WAIT  TOTAL MS\n"
            "   0    0.5  99.5  40.0     140.0\n"
            "   1    0.5  99.5  20.0     120.0\n");
}

TEST(SummaryText, StartUp_IsTheSlowestRanksWithoutSmallPhases) {
  v1::Job job = DoneJob();
  AddStartUp(&job, 0, 40);
  AddStartUp(&job, 1, 20);
  EXPECT_NE(SummaryText(job).find("start-up    140 ms to the first step: bind 100, wait 40\n"),
            std::string::npos)
      << SummaryText(job);
}

TEST(SummaryJson, FailedJob_NamesTheCause) {
  v1::Job job = DoneJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.mutable_error()->set_code(14);
  job.mutable_error()->set_message("killed by SIGKILL");
  job.mutable_error()->mutable_detail()->set_rank(1);
  job.mutable_error()->mutable_detail()->set_step(-1);
  const auto json = nlohmann::json::parse(SummaryJson(job));
  EXPECT_EQ(json["state"], "failed");
  EXPECT_EQ(json["error"]["code"], "UNAVAILABLE");
  EXPECT_EQ(json["error"]["message"], "killed by SIGKILL");
  EXPECT_EQ(json["error"]["rank"], 1);
  EXPECT_FALSE(json["error"].contains("step"));
  EXPECT_EQ(DescribeError(job.error()), "killed by SIGKILL (rank 1)");
}

TEST(SummaryJson, JobThatNeverWas_IsFailedWithTheError) {
  const auto json = nlohmann::json::parse(SummaryJson(InvalidArgument("bad \xff text")));
  EXPECT_EQ(json["state"], "failed");
  EXPECT_EQ(json["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(absl::CancelledError("")))["state"], "cancelled");
}

TEST(SummaryText, DoneJob_ReadsWell) {
  EXPECT_EQ(SummaryText(DoneJob()),
            "job         first (first-abcde): done\n"
            "steps       700 on 2 ranks in 0:14\n"
            "loss        3.5000 -> 0.2500\n"
            "evaluation  loss 0.0000, accuracy 99.70 % of 12,345 targets\n"
            "step time   20.00 ms median, 192k tokens/s\n"
            "memory      50.0 MiB peak of a rank\n"
            "digest      abc\n"
            "checkpoint  /runs/first/step-000000000700\n");
}

}  // namespace
}  // namespace weft::cli
