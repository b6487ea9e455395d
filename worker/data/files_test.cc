// Data that comes as binary files: token shards and CIFAR-10.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "worker/data/dataset.h"

namespace weft::data {
namespace {

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/files-" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string folder_;
};

class TokensTest : public FilesTest {
 protected:
  static std::string Shard(const std::vector<uint16_t>& ids, int32_t magic = 20240520,
                           int32_t version = 1, int32_t extra = 0) {
    int32_t header[256] = {magic, version, static_cast<int32_t>(ids.size()) + extra};
    std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
    bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint16_t));
    return bytes;
  }
  static std::vector<uint16_t> Count(int from, int n) {
    std::vector<uint16_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(static_cast<uint16_t>(from + i));
    return ids;
  }
  TokenOptions Options(const std::string& path) {
    TokenOptions o;
    o.path = folder_ + "/" + path;
    o.context = 4;
    o.vocab = 1000;
    o.seed = 3;
    return o;
  }
  static std::vector<int32_t> Read(const Dataset& d, int64_t number, bool eval = false) {
    std::vector<int32_t> tokens(4), targets(4);
    std::vector<void*> into = {tokens.data(), targets.data()};
    eval ? d.EvalSample(number, into) : d.TrainSample(number, into);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(targets[i], tokens[i] + 1);
    return tokens;
  }
};

TEST_F(TokensTest, Epochs_VisitEachWindowOnceWithinFiles) {
  Write("train_1.bin", Shard(Count(0, 13)));    // windows from 0, 4, 8
  Write("train_0.bin", Shard(Count(100, 16)));  // 100, 104, 108: the last ids have no window
  auto d = OpenTokens(Options("train_*.bin"));
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_EQ((*d)->eval_samples(), 0);
  std::vector<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> starts;
    for (int64_t s = 0; s < 6; ++s) starts.push_back(Read(**d, epoch * 6 + s)[0]);
    orders.push_back(starts);
    EXPECT_EQ(std::set<int32_t>(starts.begin(), starts.end()),
              (std::set<int32_t>{0, 4, 8, 100, 104, 108}));
  }
  EXPECT_TRUE(orders[0] != orders[1] || orders[1] != orders[2]);
}

TEST_F(TokensTest, SamplesOfOneSeed_AreTheSameOnceMore) {
  Write("a.bin", Shard(Count(0, 900)));
  auto one = OpenTokens(Options("a.bin")), two = OpenTokens(Options("a.bin"));
  TokenOptions other = Options("a.bin");
  other.seed = 4;
  auto three = OpenTokens(other);
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  EXPECT_EQ((*one)->digest(), (*two)->digest());
  int moved = 0;
  for (int64_t s = 400; s > 0; --s) {
    EXPECT_EQ(Read(**one, s), Read(**two, s));
    moved += Read(**one, s) != Read(**three, s);
  }
  EXPECT_GT(moved, 380);
}

TEST_F(TokensTest, HeldOutWindows_AreTheFirstOnes) {
  Write("a.bin", Shard(Count(0, 100)));
  Write("v.bin", Shard(Count(500, 100)));
  TokenOptions o = Options("a.bin");
  o.validation = folder_ + "/v.bin";
  auto all = OpenTokens(o);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)->eval_samples(), 24);
  o.eval_samples = 3;
  auto few = OpenTokens(o);
  ASSERT_TRUE(few.ok());
  ASSERT_EQ((*few)->eval_samples(), 3);
  EXPECT_EQ(Read(**few, 2, true)[0], 508);
}

TEST_F(TokensTest, Digests_TellFilesApart) {
  std::set<std::string> digests;
  std::vector<uint16_t> ids = Count(0, 900);
  for (int i = 0; i < 3; ++i) {
    Write("a.bin", Shard(ids));
    auto d = OpenTokens(Options("a.bin"));
    ASSERT_TRUE(d.ok());
    EXPECT_EQ((*d)->digest().substr(0, 5), "2824:");
    digests.insert((*d)->digest());
    ids[450] += 1;
  }
  EXPECT_EQ(digests.size(), 3u);
}

TEST_F(TokensTest, OtherFiles_AreRefusedWithTheReason) {
  std::vector<uint16_t> large = Count(0, 20);
  large[7] = 1000;
  const std::string at = "data.tokens.path: '" + folder_ + "/a.bin'";
  const std::pair<std::string, std::string> rows[] = {
      {std::string(12, 'x'),
       " has 12 bytes, its header alone 1024; name files of 16-bit tokens as "
       "llm.c writes them"},
      {Shard(Count(0, 20), 20240801),
       " begins with the number 20240801, token files with 20240520; name files of 16-bit tokens "
       "as llm.c writes them"},
      {Shard(Count(0, 20), 20240520, 2), " has version 2, version 1 is read"},
      {Shard(Count(0, 20), 20240520, 1, 5),
       " has 1064 bytes, by its header it holds 25 tokens, which take 1074; copy it again"},
      {Shard(Count(0, 20), 20240520, 1, -3),
       " has 1064 bytes, by its header it holds 17 tokens, which take 1058; copy it again"},
      {Shard(Count(0, 20), 20240520, 1, -30),
       " has 1064 bytes, by its header it holds -10 tokens, which take 1004; copy it again"},
      {Shard(Count(0, 4)),
       " has 4 tokens, fewer than one window of 5; use larger files or a smaller context"},
      {Shard(large), ": token 7 is 1000, model.gpt.vocab is 1000"},
      {"", " is empty"},
  };
  for (const auto& [bytes, message] : rows) {
    Write("a.bin", bytes);
    const Status status = OpenTokens(Options("a.bin")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), at + message);
  }
  Write("a.bin", Shard(Count(0, 20)));
  EXPECT_EQ(OpenTokens(Options("b*.bin")).status().message(),
            "data.tokens.path: no file '" + folder_ + "/b*.bin'");
  TokenOptions o = Options("a.bin");
  o.validation = folder_ + "/v.bin";
  EXPECT_EQ(OpenTokens(o).status().message(),
            "data.tokens.validation: no file '" + folder_ + "/v.bin'");
}

class Cifar10Test : public FilesTest {
 protected:
  // Records whose label is n % 10 and whose bytes tell n and the position.
  static std::string Records(int from, int count) {
    std::string bytes;
    for (int n = from; n < from + count; ++n) {
      bytes += static_cast<char>(n % 10);
      for (int i = 0; i < 3072; ++i) bytes += static_cast<char>(n + i * 7);
    }
    return bytes;
  }
  // The number of the record that a sample is.
  static int Read(const Dataset& d, int64_t number, bool eval = false) {
    std::vector<uint8_t> image(3072);
    int32_t target = -1;
    std::vector<void*> into = {image.data(), &target};
    eval ? d.EvalSample(number, into) : d.TrainSample(number, into);
    for (size_t i = 0; i < image.size(); ++i) {
      EXPECT_EQ(image[i], static_cast<uint8_t>(image[0] + i * 7));
    }
    EXPECT_EQ(target, image[0] % 10);
    return image[0];
  }
  Cifar10Options Options(const std::string& path, const std::string& validation = "") {
    Cifar10Options o;
    o.path = path;
    o.validation = validation;
    o.seed = 5;
    return o;
  }
};

TEST_F(Cifar10Test, Folder_HasItsBatchesAndTestBatch) {
  Write("data_batch_1.bin", Records(0, 3));
  Write("data_batch_2.bin", Records(3, 4));
  Write("test_batch.bin", Records(50, 2));
  auto d = OpenCifar10(Options(folder_));
  ASSERT_TRUE(d.ok()) << d.status();
  ASSERT_EQ((*d)->slots().size(), 2u);
  EXPECT_EQ(ToString((*d)->slots()[0].sample), "u8[3, 32, 32]");
  EXPECT_EQ(ToString((*d)->slots()[1].sample), "i32[]");
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<int, int> seen;
    for (int64_t s = 0; s < 7; ++s) ++seen[Read(**d, epoch * 7 + s)];
    EXPECT_EQ(seen, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}}));
  }
  ASSERT_EQ((*d)->eval_samples(), 2);
  EXPECT_EQ(Read(**d, 1, true), 51);
}

TEST_F(Cifar10Test, OneFile_HoldsNothingOutUnlessToldTo) {
  const std::string train = Write("train.bin", Records(0, 5));
  const std::string test = Write("test.bin", Records(20, 3));
  auto alone = OpenCifar10(Options(train)), both = OpenCifar10(Options(train, test));
  ASSERT_TRUE(alone.ok() && both.ok());
  EXPECT_EQ((*alone)->eval_samples(), 0);
  EXPECT_EQ((*both)->eval_samples(), 3);
  EXPECT_NE((*alone)->digest(), (*both)->digest());
}

TEST_F(Cifar10Test, OtherFiles_AreRefusedWithTheReason) {
  std::string wrong = Records(0, 3);
  wrong[3073] = 17;
  const std::string a = Write("a.bin", Records(0, 1) + "x"), b = Write("b.bin", wrong);
  const std::pair<Cifar10Options, std::string> rows[] = {
      {Options(a), "data.cifar10.path: '" + a +
                       "' has 3074 bytes, no multiple of 3073; name files of CIFAR-10's binary "
                       "version, unpacked"},
      {Options(b), "data.cifar10.path: '" + b + "': the label of record 1 is 17, wants 0 to 9"},
      {Options(folder_), "data.cifar10.path: no file '" + folder_ + "/data_batch_*.bin'"},
      {Options("/nonexistent"), "data.cifar10.path: no file '/nonexistent'"},
  };
  for (const auto& [options, message] : rows) {
    EXPECT_EQ(OpenCifar10(options).status().message(), message);
  }
  Write("data_batch_1.bin", Records(0, 2));
  EXPECT_EQ(OpenCifar10(Options(folder_)).status().message(),
            "data.cifar10.validation: no file '" + folder_ + "/test_batch.bin'");
}

}  // namespace
}  // namespace weft::data
