// Files that are either whole or absent, whatever dies when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "fabric/base/status.h"

namespace weft::ckpt {

// Writes `bytes` to `path` by way of a temporary file beside it, fsync and rename, with mode
// `mode`; then syncs the folder. On error nothing is left behind. ResourceExhausted when the disk
// is full.
Status WriteFileAtomically(const std::string& path, absl::string_view bytes, int mode = 0644);

// The whole file. NotFound when it is absent; InvalidArgument when it is larger than `limit` or no
// plain file.
StatusOr<std::string> ReadFile(const std::string& path, int64_t limit = int64_t{1} << 40);

// A file being written; removed when it is destroyed before Close succeeded.
class FileWriter {
 public:
  static StatusOr<FileWriter> Create(const std::string& path, int mode = 0644);
  FileWriter(FileWriter&& other) noexcept;
  ~FileWriter();
  Status Append(const void* data, size_t bytes);
  // Syncs to disk.
  Status Close();
  // Of everything appended so far.
  uint32_t crc32c() const { return crc_; }
  int64_t bytes() const { return bytes_; }

 private:
  FileWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
  uint32_t crc_ = 0;
  int64_t bytes_ = 0;
};

Status MakeFolders(const std::string& path);
Status SyncFolder(const std::string& path);
// Removes a folder with everything in it; absent is fine.
Status RemoveTree(const std::string& path);
// A folder that one run writes to at a time: made when absent, removed again when it is still empty
// at the end. The system drops the claim of a process that dies. One owner; any thread.
class FolderClaim {
 public:
  // AlreadyExists when another holds `path` for longer than `wait`.
  static StatusOr<FolderClaim> Take(const std::string& path, absl::Duration wait);
  FolderClaim() = default;
  FolderClaim(FolderClaim&& other) noexcept;
  FolderClaim& operator=(FolderClaim&& other) noexcept;
  ~FolderClaim();

 private:
  FolderClaim(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

// Names (not paths) in a folder, sorted. NotFound when it is absent.
StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

}  // namespace weft::ckpt
