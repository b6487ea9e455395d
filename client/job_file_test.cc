#include "client/job_file.h"

#include <filesystem>

#include "gtest/gtest.h"

#include "fabric/ckpt/atomic_file.h"
#include "fabric/wire/config_file.h"
#include "proto/config.pb.h"

namespace weft {
namespace {

class JobFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        (std::filesystem::path(testing::TempDir()) / "job_file_test").lexically_normal().string();
    ASSERT_TRUE(ckpt::RemoveTree(folder_).ok());
    ASSERT_TRUE(ckpt::MakeFolders(folder_).ok());
  }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(ckpt::WriteFileAtomically(path, text).ok());
    return path;
  }
  // A job over text.txt; `model` and `text` are more keys.
  std::string WriteJob(const std::string& model, const std::string& text = "tokens: characters") {
    return Write("job.yaml", "name: a\nmodel: {gpt: {" + model +
                                 "}}\ndata:\n  text: {path: text.txt, " + text + "}\n");
  }
  std::string folder_;
};

TEST_F(JobFileTest, RelativePath_IsMeantFromTheJobFilesFolder) {
  Write("text.txt", "abcabc\n");
  const auto job = LoadJobFile(WriteJob(""), {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.data().text().path(), folder_ + "/text.txt");
}

TEST_F(JobFileTest, RelativePathInSetting_IsMeantFromTheCurrentFolder) {
  Write("text.txt", "abc");
  const auto job = LoadJobFile(WriteJob(""), {"data.text.path=other.txt"});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(job.status().message(),
            "--set data.text.path=other.txt: data.text.path: no file 'other.txt' (" +
                (std::filesystem::current_path() / "other.txt").string() +
                ", from the current folder); correct the path, or name the text with --set "
                "data.text.path=FILE");
}

TEST_F(JobFileTest, Characters_FillTheVocabulary) {
  Write("text.txt",
        "a\xC3\xA4\xE4\xB8\xAD\xF0\x9F\x98\x80"
        "a\n");
  const auto job = LoadJobFile(WriteJob(""), {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.model().gpt().vocab(), 5);
}

TEST_F(JobFileTest, VocabularyThatIsLarger_IsKept) {
  Write("text.txt", "abc");
  const auto job = LoadJobFile(WriteJob("vocab: 10"), {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.model().gpt().vocab(), 10);
}

TEST_F(JobFileTest, BadData_SaysWhatAndWhere) {
  const std::string job = folder_ + "/job.yaml";
  const std::string text = folder_ + "/text.txt";
  struct Row {
    std::string content;
    std::string model;
    std::string message;
  };
  const Row rows[] = {
      {"abcd", "vocab: 3",
       job + ":2:22: model.gpt.vocab: 3 is too small for the 4 distinct characters of " + text +
           "; leave it out or write at least 4"},
      {"abc\xFFz", "",
       job + ":4:16: data.text.path: " + text +
           ": not UTF-8 at byte 3; convert it to UTF-8 or write data.text.tokens: bytes"},
      {"", "", job + ":4:16: data.text.path: " + text + " is empty; name a text to train on"},
  };
  for (const Row& row : rows) {
    Write("text.txt", row.content);
    const auto loaded = LoadJobFile(WriteJob(row.model), {});
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(loaded.status().message(), row.message);
  }
}

TEST_F(JobFileTest, AbsentData_NamesBothPaths) {
  const auto job = LoadJobFile(WriteJob(""), {});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(job.status().message(),
            folder_ + "/job.yaml:4:16: data.text.path: no file 'text.txt' (" + folder_ +
                "/text.txt, from the job file's folder); correct the path, or name the text with "
                "--set data.text.path=FILE");
}

TEST_F(JobFileTest, TokenFilesAndImages_BecomeAbsoluteAndMustBeThere) {
  Write("a_1.bin", "x");
  const std::string tokens = Write(
      "tokens.yaml", "name: a\ndata:\n  tokens: {path: 'a_*.bin', validation: '{b,c}.bin'}\n");
  const auto absent = LoadJobFile(tokens, {});
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(absent.status().message(),
            tokens + ":3:41: data.tokens.validation: no file '{b,c}.bin' (" + folder_ +
                "/{b,c}.bin, from the job file's folder); correct the path, or name the files with "
                "--set data.tokens.validation=FILE");
  Write("c.bin", "x");
  const auto there = LoadJobFile(tokens, {});
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(there->spec.data().tokens().path(), folder_ + "/a_*.bin");
  EXPECT_EQ(there->spec.data().tokens().validation(), folder_ + "/{b,c}.bin");

  const std::string images = Write("images.yaml", "name: a\ndata:\n  cifar10: {path: .}\n");
  const auto folder = LoadJobFile(images, {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(folder->spec.data().cifar10().path(), folder_ + "/");
  EXPECT_EQ(LoadJobFile(images, {"data.cifar10.path=/nonexistent"}).status().message(),
            "--set data.cifar10.path=/nonexistent: data.cifar10.path: no file '/nonexistent'; "
            "correct the path, or name the files with --set data.cifar10.path=FILE");
}

TEST_F(JobFileTest, FolderAsData_IsRefused) {
  const auto job = LoadJobFile(WriteJob(""), {"data.text.path=/"});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobFileTest, ProblemsFromAdmission_GetTheirPlaces) {
  Write("text.txt", "abc");
  const auto job = LoadJobFile(WriteJob("layers: 2"), {"train.batch=5"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->Locate(InvalidArgument("model.gpt.layers: is odd\ntrain.batch: is odd\n"
                                        "ranks.max: is odd\nsomething else: no path"))
                .message(),
            folder_ + "/job.yaml:2:23: model.gpt.layers: is odd\n" +
                "--set train.batch=5: train.batch: is odd\n" + folder_ +
                "/job.yaml: ranks.max: is odd\nsomething else: no path");
}

TEST(CountCharacters, OverlongSurrogateOrCutOff_IsRefusedWithItsByte) {
  const std::pair<std::string, std::string> rows[] = {
      {"a\xC0\x80", "not UTF-8 at byte 1"},         // overlong NUL
      {"ab\xE0\x80\xAF", "not UTF-8 at byte 2"},    // overlong slash
      {"\xED\xA0\x80", "not UTF-8 at byte 0"},      // surrogate
      {"\xF4\x90\x80\x80", "not UTF-8 at byte 0"},  // above the last code point
      {"abc\xE4\xB8", "not UTF-8 at byte 3"},       // cut off
      {"\x80", "not UTF-8 at byte 0"},              // continuation alone
  };
  for (const auto& [text, message] : rows) {
    EXPECT_EQ(CountCharacters(text).status().message(), message);
  }
}

// Every file in configs/ must be readable by the program it is for.
template <typename T>
void ExpectParses(const char* folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    T message;
    const Status status = wire::ParseYamlFile(entry.path().string(), &message);
    EXPECT_TRUE(status.ok()) << status;
    ++files;
  }
  EXPECT_GT(files, 0) << folder;
}

TEST(Configs, EveryFile_Parses) {
  ExpectParses<v1::JobSpec>("configs/jobs");
  ExpectParses<v1::JobSpec>("configs/jobs/reference");
  ExpectParses<v1::CoordinatorConfig>("configs/server");
  ExpectParses<v1::WorkerConfig>("configs/worker");
  ExpectParses<v1::ClientConfig>("configs/client");
}

}  // namespace
}  // namespace weft
