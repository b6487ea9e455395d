#include "client/cli/cli.h"

#include <signal.h>

#include <sstream>

#include "gtest/gtest.h"

#include "client/cli/verb.h"

namespace weft::cli {
namespace {

struct Answer {
  int code = 0;
  std::string out;
  std::string err;
};

// One a process, as in main.
Interrupts& TheInterrupts() {
  static Interrupts* const interrupts = new Interrupts;
  return *interrupts;
}

Answer Weft(const std::vector<std::string>& arguments) {
  Environment environment;
  environment.state_dir = testing::TempDir() + "/no-coordinator-here";
  environment.programs = testing::TempDir() + "/no-programs-here";
  std::ostringstream out, err;
  const int code = RunCli(arguments, environment, TheInterrupts(), out, err);
  return {code, out.str(), err.str()};
}

TEST(Cli, Help_NamesEveryVerb) {
  const Answer answer = Weft({"--help"});
  EXPECT_EQ(answer.code, 0);
  EXPECT_EQ(answer.err, "");
  for (const Verb& verb : Verbs()) {
    EXPECT_NE(answer.out.find(std::string("\n  ") + verb.name + " "), std::string::npos)
        << verb.name;
  }
}

TEST(Cli, HelpOfEachVerb_HasTwoExamples) {
  for (const Verb& verb : Verbs()) {
    const Answer answer = Weft({verb.name, "--help"});
    EXPECT_EQ(answer.code, 0) << verb.name;
    const size_t examples = answer.out.find("Examples:");
    ASSERT_NE(examples, std::string::npos) << verb.name;
    const std::string start = std::string("\n  weft ") + verb.name;
    const size_t first = answer.out.find(start, examples);
    ASSERT_NE(first, std::string::npos) << answer.out;
    EXPECT_NE(answer.out.find(start, first + 1), std::string::npos) << answer.out;
  }
}

TEST(Cli, Version_IsPrinted) {
  const Answer answer = Weft({"version"});
  EXPECT_EQ(answer.code, 0);
  EXPECT_EQ(answer.out.substr(0, 5), "weft ");
  EXPECT_EQ(Weft({"--version"}).code, 0);
}

struct BadLine {
  std::vector<std::string> arguments;
  int code;
  std::string error;  // the beginning of standard error
};

TEST(Cli, BadCommandLine_SaysWhatAndWhatToDo) {
  const BadLine rows[] = {
      {{}, 2, "error: no verb given; see: weft --help"},
      {{"rn", "job.yaml"}, 2, "error: no verb 'rn'; did you mean 'run'?"},
      {{"run", "job.yaml", "--ranx", "2"},
       2,
       "error: no flag '--ranx' of weft run; did you mean '--ranks'?"},
      {{"run"}, 2, "error: job is required"},
      {{"run", "job.yaml", "--ranks", "zero"}, 2, "error: "},
      {{"run", "job.yaml", "--ranks", "0"}, 2, "error: "},
      {{"run", "no-such-job.yaml"}, 3, "error: no job file no-such-job.yaml; name a YAML file"},
      {{"run", "configs/jobs/seqrev.yaml", "--resume", "--fresh"},
       2,
       "error: --resume and --fresh exclude each other; give one"},
      {{"run", "configs/jobs/seqrev.yaml", "--set", "train.steeps=5"},
       2,
       "error: --set train.steeps=5: unknown key 'steeps' in train; did you mean 'steps'?"},
      {{"run", "configs/jobs/seqrev.yaml", "--profile=many"},
       2,
       "error: --profile=many: wants a number of steps from 1 to 1000"},
      {{"run", "--profile", "configs/jobs/seqrev.yaml"}, 3, "error: no program "},
      {{"run", "configs/jobs/seqrev.yaml", "--coordinator", "127.0.0.1:1"},
       2,
       "error: weft run starts a coordinator of its own"},
      {{"run", "configs/jobs/seqrev.yaml", "--out", "x"}, 3, "error: no program "},
      {{"run", "configs/jobs/seqrev.yaml", "--ranks", "1025"},
       2,
       "error: 1025 ranks are more than the 1024 that weft run starts on one machine; lower "},
      {{"list"}, 3, "error: no coordinator has written "},
      {{"list", "-o", "yaml"}, 2, "error: "},
      {{"list", "--config", "configs/worker/worker.yaml"},
       2,
       "error: configs/worker/worker.yaml:4:1: unknown key 'slots'"},
      {{"ckpt", "list", "no-such-folder"},
       3,
       "error: no checkpoint in no-such-folder; name a job's"},
      {{"ckpt", "lst", "x"}, 2, "error: "},
      {{"sample", "no-such-folder"}, 3, "error: no verified checkpoint in "},
      {{"cancel"}, 2, "error: id is required"},
  };
  for (const BadLine& row : rows) {
    const Answer answer = Weft(row.arguments);
    EXPECT_EQ(answer.code, row.code) << answer.err;
    EXPECT_EQ(answer.err.substr(0, row.error.size()), row.error);
    EXPECT_EQ(answer.out, "");
  }
}

TEST(Cli, OutputThatCannotBeWritten_IsAnError) {
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(RunCli({"validate", "--file-only", "configs/jobs/seqrev.yaml"}, {}, TheInterrupts(),
                   out, err),
            1);
  EXPECT_NE(err.str().find("error: standard output took only a part"), std::string::npos)
      << err.str();
}

TEST(Cli, RunWithJson_OnError_EndsWithOneLineOfJson) {
  const Answer answer = Weft({"run", "no-such-job.yaml", "-o", "json"});
  EXPECT_EQ(answer.code, 3);
  EXPECT_EQ(answer.out.rfind("{\"error\":{\"code\":\"NOT_FOUND\"", 0), 0u) << answer.out;
  EXPECT_EQ(answer.out.find('\n'), answer.out.size() - 1);
}

TEST(Cli, ValidateFileOnly_NeedsNoCoordinator) {
  EXPECT_EQ(Weft({"validate", "--file-only", "configs/jobs/seqrev.yaml"}).code, 0);
}

TEST(Cli, ConfigWithRelativeStateDir_IsUsed) {
  const Answer answer = Weft({"list", "--config", "configs/client/client.yaml"});
  EXPECT_NE(answer.err.find("/var/lib/weft"), std::string::npos) << answer.err;
}

}  // namespace
}  // namespace weft::cli
