#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "fabric/ckpt/atomic_file.h"
#include "fabric/ckpt/manifest.h"
#include "fabric/ckpt/safetensors.h"

namespace weft::ckpt {
namespace {

class CkptTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/ckptXXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(root_).ok()); }

  std::string Write(int64_t step, float first = 1) {
    weights_ = {first, 2, 3, 4, 5, 6};
    Manifest m;
    m.step = step;
    m.job = "test";
    m.spec_json = "{}";
    m.numerics_json = "{}";
    m.state_digest = "d";
    const TensorMeta meta{DType::kF32, {2, 3}};
    auto path = WriteCheckpoint(root_, m, {{"model.safetensors", {{"w", meta, weights_.data()}}}});
    EXPECT_TRUE(path.ok()) << path.status();
    return *path;
  }

  static void Overwrite(const std::string& path, size_t at, char byte) {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(byte);
  }

  std::string root_;
  std::vector<float> weights_;
};

TEST_F(CkptTest, Write_ThenLoad_GivesTheSameTensor) {
  const std::string path = Write(7);
  auto info = NewestVerified(root_, nullptr);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->path, path);
  EXPECT_EQ(info->manifest.step, 7);
  auto file = Safetensors::Load(path + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto* entry = file->Find("w");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->meta, (TensorMeta{DType::kF32, {2, 3}}));
  EXPECT_EQ(std::memcmp(file->data(*entry), weights_.data(), 24), 0);
}

TEST_F(CkptTest, Newest_FlippedByteAnywhere_FallsBackToOlder) {
  const std::string older = Write(1), newer = Write(2);
  for (const char* name : {"model.safetensors", "manifest.json"}) {
    const std::string file = newer + "/" + name;
    auto original = ReadFile(file);
    ASSERT_TRUE(original.ok());
    for (size_t at = 0; at < original->size(); at += 3) {
      Overwrite(file, at, static_cast<char>((*original)[at] ^ 0x10));
      std::vector<std::string> skipped;
      auto info = NewestVerified(root_, &skipped);
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->path, older) << name << " byte " << at;
      EXPECT_EQ(skipped.size(), 1u);
      Overwrite(file, at, (*original)[at]);
    }
  }
  EXPECT_EQ(NewestVerified(root_, nullptr)->path, newer);
}

TEST_F(CkptTest, Newest_FileCutOrMissing_FallsBack) {
  const std::string older = Write(1), newer = Write(2);
  std::filesystem::resize_file(newer + "/model.safetensors", 70);
  EXPECT_EQ(NewestVerified(root_, nullptr)->path, older);
  std::filesystem::remove(newer + "/model.safetensors");
  EXPECT_EQ(NewestVerified(root_, nullptr)->path, older);
}

TEST_F(CkptTest, Prune_KeepsNewestAndNewestVerified) {
  const std::string good = Write(1);
  for (int64_t step : {2, 3, 4}) {
    std::filesystem::resize_file(Write(step) + "/model.safetensors", 3);
  }
  std::filesystem::create_directory(root_ + "/.writing-9-1");
  ASSERT_TRUE(PruneCheckpoints(root_, 1).ok());
  EXPECT_TRUE(VerifyCheckpoint(good).ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/.writing-9-1"));
  const std::string newest = Write(5);
  ASSERT_TRUE(PruneCheckpoints(root_, 1).ok());
  EXPECT_EQ(*ListCheckpoints(root_), std::vector<std::string>{newest});
}

TEST_F(CkptTest, Folder_WithoutManifest_IsNoCheckpoint) {
  const std::string path = Write(3);
  std::filesystem::remove(path + "/manifest.json");
  EXPECT_TRUE(absl::IsNotFound(NewestVerified(root_, nullptr).status()));
}

TEST(Safetensors, HostileHeaders_AreRefused) {
  const auto file = [](const std::string& header, size_t data) {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + std::string(data, 'x');
  };
  const std::string huge_length("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
  const std::vector<std::string> bad = {
      "",
      "1234567",
      huge_length,
      file("[]", 0),
      file("{", 0),
      file(R"({"a":1})", 0),
      file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
      file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8),
      file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
      file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 8),
      file(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
      file(R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4),
      file(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
      file(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          4),
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_FALSE(Safetensors::Parse(bad[i]).ok()) << "case " << i;
  }
}

TEST_F(CkptTest, AtomicWrite_IntoMissingFolder_LeavesNothing) {
  EXPECT_FALSE(WriteFileAtomically(root_ + "/no/file", "x").ok());
  ASSERT_TRUE(WriteFileAtomically(root_ + "/file", "x", 0600).ok());
  EXPECT_EQ(*ListFolder(root_), std::vector<std::string>{"file"});
}

TEST_F(CkptTest, FolderClaim_WhileHeld_IsRefusedAndLaterGiven) {
  const std::string folder = root_ + "/runs/job";
  {
    const auto first = FolderClaim::Take(folder, absl::ZeroDuration());
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = FolderClaim::Take(folder, absl::ZeroDuration());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(std::filesystem::exists(folder));
    ASSERT_TRUE(WriteFileAtomically(folder + "/kept", "x").ok());
  }
  EXPECT_TRUE(FolderClaim::Take(folder, absl::ZeroDuration()).ok());
  EXPECT_TRUE(std::filesystem::exists(folder + "/kept"));
}

TEST_F(CkptTest, FolderClaim_OfFolderLeftEmpty_RemovesIt) {
  EXPECT_TRUE(FolderClaim::Take(root_ + "/job", absl::ZeroDuration()).ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/job"));
}

TEST_F(CkptTest, FolderClaim_OfAFile_IsRefused) {
  ASSERT_TRUE(WriteFileAtomically(root_ + "/job", "x").ok());
  EXPECT_FALSE(FolderClaim::Take(root_ + "/job", absl::ZeroDuration()).ok());
}

}  // namespace
}  // namespace weft::ckpt
