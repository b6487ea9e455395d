#include "client/cli/progress.h"

#include <string>

#include "gtest/gtest.h"

namespace weft::cli {
namespace {

class ManualClock final : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + now_; }
  absl::Duration Monotonic() override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Duration now_ = absl::Seconds(100);
};

class ProgressTest : public testing::Test {
 protected:
  Progress Make(const ProgressOptions& options) {
    return Progress(options, &clock_,
                    [this](absl::string_view text) { text_ += std::string(text); });
  }
  static v1::JobEvent Step(int64_t step, int64_t of = 100) {
    v1::JobEvent event;
    event.mutable_progress()->set_step(step);
    event.mutable_progress()->set_of(of);
    event.mutable_progress()->set_loss(1.5);
    event.mutable_progress()->set_step_ms(100);
    event.mutable_progress()->set_tokens_per_s(12345);
    return event;
  }
  static v1::JobEvent Note(const std::string& text) {
    v1::JobEvent event;
    event.set_note(text);
    return event;
  }

  ManualClock clock_;
  std::string text_;
};

TEST_F(ProgressTest, Plain_ManyFastSteps_PrintsOnlyTenths) {
  Progress progress = Make({});
  for (int step = 1; step <= 100; ++step) progress.OnEvent(Step(step));
  EXPECT_EQ(std::count(text_.begin(), text_.end(), '\n'), 11);  // the first step and ten tenths
  EXPECT_NE(text_.find("step 10/100  loss 1.5000  12.3k tokens/s  0:09 left\n"), std::string::npos)
      << text_;
}

TEST_F(ProgressTest, Plain_SlowSteps_PrintsEveryTenSeconds) {
  Progress progress = Make({});
  for (int step = 1; step <= 60; ++step) {
    clock_.Advance(absl::Seconds(1));
    progress.OnEvent(Step(step, 1000000));
  }
  EXPECT_EQ(std::count(text_.begin(), text_.end(), '\n'), 6);
}

TEST_F(ProgressTest, Terminal_Steps_RewriteOneLine) {
  Progress progress = Make({.in_place = true, .width = 100});
  progress.OnEvent(Step(25));
  EXPECT_EQ(
      text_,
      "\r\033[K 25 % [#######.......................] step 25/100  loss 1.5000  12.3k tokens/s  "
      "0:08 left");
  text_.clear();
  progress.OnEvent(Step(26));  // too soon after the first
  EXPECT_EQ(text_, "");
  progress.OnEvent(Step(100));  // the last one always shows
  EXPECT_NE(text_.find("100 % [##############################]"), std::string::npos) << text_;
  progress.Finish();
  EXPECT_EQ(text_.back(), '\n');
}

TEST_F(ProgressTest, Terminal_EveryWidth_StaysOnOneLine) {
  for (int width = 1; width < 140; ++width) {
    text_.clear();
    Progress progress = Make({.in_place = true, .width = width});
    progress.OnEvent(Step(100));
    const std::string line = text_.substr(std::string("\r\033[K").size());
    EXPECT_LT(line.size(), static_cast<size_t>(width)) << line;
  }
}

TEST_F(ProgressTest, Terminal_Note_StandsAboveTheBar) {
  Progress progress = Make({.in_place = true, .width = 60});
  progress.OnEvent(Note("first"));
  EXPECT_EQ(text_, "first\n");
  progress.OnEvent(Step(50));
  const std::string bar = text_.substr(text_.find("\033[K") + 3);
  text_.clear();
  progress.OnEvent(Note("second"));
  EXPECT_EQ(text_, "\r\033[Ksecond\n" + bar);
}

TEST_F(ProgressTest, Events_AreSaidInWords) {
  Progress progress = Make({});
  v1::JobEvent event;
  event.mutable_state()->set_state(v1::JOB_STATE_RUNNING);
  progress.OnEvent(event);
  event.mutable_eval()->set_step(20);
  event.mutable_eval()->set_loss(0.25);
  event.mutable_eval()->set_accuracy(0.995);
  progress.OnEvent(event);
  event.mutable_checkpoint()->set_step(20);
  event.mutable_checkpoint()->set_path("runs/a/step-000000000020");
  progress.OnEvent(event);
  EXPECT_EQ(text_,
            "running\nstep 20: evaluation loss 0.2500, accuracy 99.50 %\n"
            "step 20: checkpoint runs/a/step-000000000020\n");
}

}  // namespace
}  // namespace weft::cli
