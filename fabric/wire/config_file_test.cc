#include "fabric/wire/config_file.h"

#include <string>

#include "gtest/gtest.h"

#include "proto/config.pb.h"
#include "proto/job.pb.h"

namespace weft::wire {
namespace {

constexpr char kGoodJob[] = R"(# a comment
name: shakespeare
model:
  gpt: {layers: 4, heads: 4, dim: 128, context: 64, position: rotary, norm: rms, tied: false}
data: {text: {path: input.txt, tokens: characters, validation: 0.1}}
train:
  steps: 2000
  batch: 12
  optimizer: {adamw: {lr: 1e-3, betas: [0.9, 0.99], weight_decay: .1}}
  schedule: {warmup: 100, decay: cosine, min_lr: 1E-4}
  clip_norm: 1.
  seed: 18446744073709551615
ranks: {min: 1, max: 4}
reduce: ring
)";

std::string MessageOf(const Status& status) { return std::string(status.message()); }

void ExpectGoodJob(const v1::JobSpec& job) {
  EXPECT_EQ(job.name(), "shakespeare");
  EXPECT_EQ(job.model().gpt().layers(), 4);
  EXPECT_EQ(job.model().gpt().position(), v1::POSITION_ROTARY);
  EXPECT_TRUE(job.model().gpt().has_tied());
  EXPECT_FALSE(job.model().gpt().tied());
  EXPECT_FALSE(job.model().gpt().has_bias());
  EXPECT_EQ(job.data().text().tokens(), v1::TOKENS_CHARACTERS);
  ASSERT_EQ(job.train().optimizer().adamw().betas_size(), 2);
  EXPECT_EQ(job.train().optimizer().adamw().betas(1), 0.99);
  EXPECT_EQ(job.train().optimizer().adamw().weight_decay(), 0.1);
  EXPECT_EQ(job.train().schedule().min_lr(), 1e-4);
  EXPECT_EQ(job.train().clip_norm(), 1.0);
  EXPECT_EQ(job.train().seed(), 18446744073709551615u);
  EXPECT_EQ(job.ranks().max(), 4);
  EXPECT_EQ(job.reduce(), v1::REDUCE_MODE_RING);
}

TEST(ConfigFile, GoodJob_FillsEveryField) {
  v1::JobSpec job;
  ASSERT_TRUE(ParseYaml(kGoodJob, "job.yaml", &job).ok()) << ParseYaml(kGoodJob, "job.yaml", &job);
  ExpectGoodJob(job);
}

TEST(ConfigFile, ByteOrderMarkAndCrlf_AreAccepted) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : std::string(kGoodJob)) {
    if (c == '\n') text.push_back('\r');
    text.push_back(c);
  }
  v1::JobSpec job;
  const Status status = ParseYaml(text, "job.yaml", &job);
  ASSERT_TRUE(status.ok()) << status;
  ExpectGoodJob(job);
}

TEST(ConfigFile, Json_RoundTrips) {
  v1::JobSpec job;
  ASSERT_TRUE(ParseYaml(kGoodJob, "job.yaml", &job).ok());
  for (const int indent : {-1, 2}) {
    const std::string json = MessageToJson(job, indent);
    v1::JobSpec again;
    const Status status = ParseYaml(json, "job.json", &again);
    ASSERT_TRUE(status.ok()) << status << json;
    EXPECT_EQ(again.SerializeAsString(), job.SerializeAsString()) << json;
  }
}

TEST(ConfigFile, JsonWithTabs_IsAccepted) {
  v1::RanksSpec ranks;
  const Status status = ParseYaml("{\n\t\"min\":1,\n\t\"max\": 3\n}\n", "r.json", &ranks);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(ranks.max(), 3);
}

TEST(ConfigFile, MapField_IsReadByKey) {
  v1::Numerics numerics;
  const Status status =
      ParseYaml("{device: cpu, libraries: {onednn: 2.6.3, isal: '2.30'}}", "n.yaml", &numerics);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(numerics.libraries().at("onednn"), "2.6.3");
  EXPECT_EQ(numerics.libraries().at("isal"), "2.30");
}

TEST(ConfigFile, Anchors_AreFollowed) {
  v1::JobSpec job;
  const Status status = ParseYaml("eval: &every {every: 10}\ncheckpoint: *every\n", "a.yaml", &job);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(job.checkpoint().every(), 10);
}

TEST(ConfigFile, Positions_NameTheNearestField) {
  v1::JobSpec job;
  SourceMap map;
  ASSERT_TRUE(ParseYaml("data:\n  text:\n    path: a.txt\n", "j.yaml", &job, &map).ok());
  EXPECT_EQ(map.Where("data.text.path"), "j.yaml:3:11: ");
  EXPECT_EQ(map.Where("data.text.tokens"), "j.yaml:3:5: ");
  EXPECT_EQ(map.Where("train.steps"), "j.yaml: ");
}

struct BadFile {
  const char* name;
  std::string text;
  std::string message;
};

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadFileTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, ParseYaml_BadFile_SaysWhatAndWhere) {
  v1::JobSpec job;
  const Status status = ParseYaml(GetParam().text, "job.yaml", &job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(status), GetParam().message);
}

std::string AliasBomb() {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) text += (k ? ", " : "") + last;
    text += "]\n";
  }
  return text;
}

const BadFile kBadFiles[] = {
    {"unknown key", "name: a\ntrain:\n  steeps: 5\n",
     "job.yaml:3:3: unknown key 'steeps' in train; did you mean 'steps'?"},
    {"unknown key at the top", "nam: a\n", "job.yaml:1:1: unknown key 'nam'; did you mean 'name'?"},
    {"unknown key far from all", "ranks:\n  zzzzzz: 1\n",
     "job.yaml:2:3: unknown key 'zzzzzz' in ranks; known keys: min, max"},
    {"unknown key in flow style", "train: {batch: 5, optimizer: {sgd: {lrr: 0.1}}}\n",
     "job.yaml:1:37: unknown key 'lrr' in train.optimizer.sgd; did you mean 'lr'?"},
    {"duplicate key", "name: a\nlanes: 4\nname: b\n",
     "job.yaml:3:1: key 'name' was given before, in line 1; keep one"},
    {"text for an integer", "train: {steps: many}\n",
     "job.yaml:1:16: train.steps: 'many' is not a whole number"},
    {"quoted integer", "train: {steps: '60'}\n",
     "job.yaml:1:16: train.steps: '60' is quoted text where a whole number is wanted; remove the "
     "quotes"},
    {"fraction for an integer", "train:\n  batch: 1.5\n",
     "job.yaml:2:10: train.batch: '1.5' is not a whole number"},
    {"exponent for an integer", "train:\n  steps: 2e3\n",
     "job.yaml:2:10: train.steps: '2e3' is not a whole number; write 2000"},
    {"underscores", "train:\n  steps: 1_000\n",
     "job.yaml:2:10: train.steps: '1_000' is not a whole number; write 1000"},
    {"hexadecimal", "lanes: 0x10\n", "job.yaml:1:8: lanes: '0x10' is not a whole number"},
    {"leading zero", "lanes: 010\n", "job.yaml:1:8: lanes: '010' is not a whole number; write 10"},
    {"32 bits overflow", "ranks: {max: 3000000000}\n",
     "job.yaml:1:14: ranks.max: 3000000000 is out of range; from -2147483648 to 2147483647"},
    {"64 bits overflow", "train: {steps: 99999999999999999999}\n",
     "job.yaml:1:16: train.steps: 99999999999999999999 is out of range; from "
     "-9223372036854775808 to 9223372036854775807"},
    {"negative seed", "train: {seed: -1}\n",
     "job.yaml:1:15: train.seed: -1 is out of range; from 0 to 18446744073709551615"},
    {"text for a number", "train: {clip_norm: big}\n",
     "job.yaml:1:20: train.clip_norm: 'big' is not a number; write 0.001 or 1e-3"},
    {"not a number", "train: {clip_norm: .nan}\n",
     "job.yaml:1:20: train.clip_norm: '.nan' is not a number; write 0.001 or 1e-3"},
    {"infinite", "train: {clip_norm: 1e999}\n",
     "job.yaml:1:20: train.clip_norm: 1e999 is out of range"},
    {"yes for true", "model: {gpt: {tied: yes}}\n",
     "job.yaml:1:21: model.gpt.tied: 'yes' is not a truth value; write true or false"},
    {"on for true", "model: {gpt: {bias: on}}\n",
     "job.yaml:1:21: model.gpt.bias: 'on' is not a truth value; write true or false"},
    {"unknown enum value", "model:\n  gpt:\n    position: rotery\n",
     "job.yaml:3:15: model.gpt.position: unknown value 'rotery'; one of learned, rotary; did you "
     "mean 'rotary'?"},
    {"enum with its prefix", "reduce: REDUCE_MODE_RING\n",
     "job.yaml:1:9: reduce: unknown value 'REDUCE_MODE_RING'; one of ordered, ring"},
    {"two members of a oneof", "train:\n  optimizer:\n    sgd: {lr: 1}\n    adamw: {lr: 1}\n",
     "job.yaml:4:5: train.optimizer: has both 'sgd' (line 3) and 'adamw'; keep one"},
    {"list for a map", "train: [1, 2]\n",
     "job.yaml:1:8: train: a list where a map is wanted, with keys steps, batch, optimizer, "
     "schedule, clip_norm, seed, precision, stochastic_rounding"},
    {"map for a number", "lanes: {a: 1}\n",
     "job.yaml:1:8: lanes: a map where a whole number is wanted"},
    {"number for a list", "train: {optimizer: {adamw: {betas: 0.9}}}\n",
     "job.yaml:1:36: train.optimizer.adamw.betas: '0.9' where a list is wanted; write [a, b]"},
    {"text in a list of numbers", "train: {optimizer: {adamw: {betas: [0.9, x]}}}\n",
     "job.yaml:1:42: train.optimizer.adamw.betas[1]: 'x' is not a number; write 0.001 or 1e-3"},
    {"no value", "name: a\nlanes:\ntrain: {}\n",
     "job.yaml:2:1: lanes: no value; write a whole number or remove the key"},
    {"null for a map", "train: ~\n",
     "job.yaml:1:8: train: no value; write a map or remove the key"},
    {"empty file", "", "job.yaml: empty; a map of keys is wanted, for example 'name: ...'"},
    {"only comments", "# nothing\n\n",
     "job.yaml: empty; a map of keys is wanted, for example 'name: ...'"},
    {"text instead of a map", "hello\n",
     "job.yaml:1:1: 'hello' where a map is wanted, with keys name, model, data, train, ranks, "
     "lanes, reduce, checkpoint, eval, transport, instruction_set, threads, sample, device, tune, "
     "determinism, profile"},
    {"two documents", "name: a\n---\nname: b\n",
     "job.yaml:2:1: a second document; write one file for each"},
    {"tab", "train:\n\tsteps: 5\n", "job.yaml:2:1: a tab in the indentation; YAML wants spaces"},
    {"unclosed bracket", "train: {steps: 5\nname: b\n",
     "job.yaml:2:5: not valid YAML: end of map flow not found; check indentation, brackets, "
     "quotes and the space after ':'"},
    {"bad indentation", "train:\n  steps: 5\n batch: 3\n",
     "job.yaml:3:2: not valid YAML: end of map not found; check indentation, brackets, quotes and "
     "the space after ':'"},
    {"not UTF-8", "name: a\nlanes: \xff\n",
     "job.yaml:2:8: byte 255 is not UTF-8 text; save the file as UTF-8"},
    {"UTF-16", std::string("\xff\xfen\0a\0", 6),
     "job.yaml:1:1: byte 255 is not UTF-8 text; save the file as UTF-8"},
    {"NUL", std::string("name: a\0b\n", 10),
     "job.yaml:1:8: byte 0 is not UTF-8 text; save the file as UTF-8"},
    {"tag", "name: !!binary aGk=\n",
     "job.yaml:1:7: the tag 'tag:yaml.org,2002:binary' is not supported; remove it"},
    {"merge key", "eval: &e {every: 1}\ncheckpoint: {<<: *e}\n",
     "job.yaml:2:14: merge keys ('<<') are not supported; write the keys out"},
    {"list as a key", "? [a, b]\n: 1\n",
     "job.yaml:1:3: a list or map as a key; a key is plain text"},
    {"unknown alias", "name: *nobody\n",
     "job.yaml:1:7: not valid YAML: the referenced anchor is not defined; check "
     "indentation, brackets, quotes and the space after ':'"},
    {"alias of itself", "train: &t {optimizer: *t}\n",
     "job.yaml:1:23: an alias of a node that contains it"},
    {"alias bomb", AliasBomb(),
     "job.yaml:6:55: more than 1048576 values once aliases are followed"},
    {"too deep", "train: " + std::string(100, '[') + std::string(100, ']'),
     "job.yaml:1:71: more than 64 levels of nesting"},
    {"too large", std::string(kMaxYamlBytes + 1, ' '),
     "job.yaml: 16777217 bytes; at most 16777216 are read"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadFileTest, testing::ValuesIn(kBadFiles));

TEST(ApplySetting, GoodValues_ReplaceFields) {
  v1::JobSpec job;
  ASSERT_TRUE(ParseYaml(kGoodJob, "job.yaml", &job).ok());
  for (const char* setting :
       {"train.steps=60", "name=b: c #d", "model.gpt.norm=layer", "data.text.path='q.txt'",
        "train.optimizer={sgd: {lr: 0.1, clamp: 1}}", "model.gpt.tied=true", "ranks.max=6"}) {
    const Status status = ApplySetting(setting, &job);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(job.train().steps(), 60);
  EXPECT_EQ(job.train().batch(), 12);
  EXPECT_EQ(job.name(), "b: c #d");
  EXPECT_EQ(job.model().gpt().norm(), v1::NORM_LAYER);
  EXPECT_EQ(job.data().text().path(), "q.txt");
  EXPECT_EQ(job.train().optimizer().sgd().clamp(), 1);
  EXPECT_TRUE(job.model().gpt().tied());
  EXPECT_EQ(job.ranks().min(), 1);
}

TEST(ApplySetting, List_IsReplacedNotExtended) {
  v1::JobSpec job;
  ASSERT_TRUE(ParseYaml(kGoodJob, "job.yaml", &job).ok());
  ASSERT_TRUE(ApplySetting("train.optimizer.adamw.betas=[0.8, 0.7]", &job).ok());
  ASSERT_EQ(job.train().optimizer().adamw().betas_size(), 2);
  EXPECT_EQ(job.train().optimizer().adamw().betas(0), 0.8);
}

TEST(ApplySetting, BadValues_SayWhatAndWhere) {
  const std::pair<const char*, const char*> rows[] = {
      {"train.steeps=60",
       "--set train.steeps=60: unknown key 'steeps' in train; did you mean 'steps'?"},
      {"trayn.steps=60", "--set trayn.steps=60: unknown key 'trayn'; did you mean 'train'?"},
      {"train.steps=6x", "--set train.steps=6x: train.steps: '6x' is not a whole number"},
      {"train.steps=",
       "--set train.steps=: train.steps: no value; write a whole number or remove the key"},
      {"train.steps.x=1", "--set train.steps.x=1: train.steps: has no keys below it"},
      {"train.steps", "--set train.steps: write key=value, for example train.steps=60"},
      {"=5", "--set =5: write key=value, for example train.steps=60"},
      {"reduce=rang",
       "--set reduce=rang: reduce: unknown value 'rang'; one of ordered, ring; did you mean "
       "'ring'?"},
      {"train.optimizer.sgd.lr=0.1",
       "--set train.optimizer.sgd.lr=0.1: train.optimizer: has 'adamw'; to replace it write "
       "--set 'train.optimizer={sgd: {...}}'"},
      {"train=5",
       "--set train=5: train: '5' where a map is wanted, with keys steps, batch, optimizer, "
       "schedule, clip_norm, seed, precision, stochastic_rounding"},
  };
  for (const auto& [setting, message] : rows) {
    v1::JobSpec job;
    ASSERT_TRUE(ParseYaml(kGoodJob, "job.yaml", &job).ok());
    const Status status = ApplySetting(setting, &job);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(MessageOf(status), message);
  }
}

TEST(ParseYamlFile, AbsentFile_IsNotFound) {
  v1::ClientConfig config;
  const Status status = ParseYamlFile("no/such/file.yaml", &config);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST(MessageToJson, Job_ReadsWellForScripts) {
  v1::Job job;
  job.set_id("j1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_step(int64_t{1} << 40);
  job.mutable_create_time()->set_seconds(1);
  const std::string json = MessageToJson(job);
  EXPECT_NE(json.find("\"state\":\"running\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"step\":1099511627776"), std::string::npos) << json;
  EXPECT_NE(json.find("\"create_time\":\"1970-01-01T00:00:01Z\""), std::string::npos) << json;
}

}  // namespace
}  // namespace weft::wire
