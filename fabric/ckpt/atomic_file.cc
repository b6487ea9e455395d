#include "fabric/ckpt/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "fabric/base/clock.h"
#include "fabric/base/hash.h"

namespace weft::ckpt {
namespace {

Status ErrorCode(absl::string_view what, const std::string& path, const std::error_code& error) {
  return ErrnoStatus(absl::StrCat(what, " '", path, "'"), error.value());
}

// Whether `path` still names the open folder.
bool Names(const std::string& path, int fd) {
  struct stat open, there;
  return fstat(fd, &open) == 0 && stat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

std::string FolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

StatusOr<FileWriter> FileWriter::Create(const std::string& path, int mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(absl::StrCat("cannot create '", path, "'"), errno);
  return FileWriter(fd, path);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      crc_(other.crc_),
      bytes_(other.bytes_) {}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(path_.c_str());
}

Status FileWriter::Append(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  crc_ = Crc32c(crc_, p, bytes);
  bytes_ += static_cast<int64_t>(bytes);
  while (bytes > 0) {
    const ssize_t n = write(fd_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(absl::StrCat("cannot write '", path_, "'"), errno);
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

Status FileWriter::Close() {
  if (fsync(fd_) != 0) return ErrnoStatus(absl::StrCat("cannot sync '", path_, "'"), errno);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) {
    const int error = errno;
    unlink(path_.c_str());
    return ErrnoStatus(absl::StrCat("cannot close '", path_, "'"), error);
  }
  return absl::OkStatus();
}

Status WriteFileAtomically(const std::string& path, absl::string_view bytes, int mode) {
  const std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  unlink(temporary.c_str());
  {
    ASSIGN_OR_RETURN(FileWriter file, FileWriter::Create(temporary, mode));
    RETURN_IF_ERROR(file.Append(bytes.data(), bytes.size()));
    RETURN_IF_ERROR(file.Close());
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return ErrnoStatus(absl::StrCat("cannot rename '", temporary, "' to '", path, "'"), error);
  }
  return SyncFolder(FolderOf(path));
}

StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(absl::StrCat("cannot open '", path, "'"), errno);
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(absl::StrCat("cannot stat '", path, "'"), errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument("'", path, "' is not a plain file");
  if (info.st_size > limit) {
    return InvalidArgument("'", path, "' has ", info.st_size, " bytes; at most ", limit,
                           " are read");
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(absl::StrCat("cannot read '", path, "'"), errno);
    if (n == 0) return DataLoss("'", path, "' became shorter while it was read");
    done += static_cast<size_t>(n);
  }
  return bytes;
}

Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? ErrorCode("cannot create folder", path, error) : absl::OkStatus();
}

StatusOr<FolderClaim> FolderClaim::Take(const std::string& path, absl::Duration wait) {
  constexpr absl::Duration kPause = absl::Milliseconds(20);
  const Deadline deadline = Deadline::After(wait);
  while (true) {
    RETURN_IF_ERROR(MakeFolders(path));
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) continue;  // its last owner just removed it
    if (fd < 0) return ErrnoStatus(absl::StrCat("cannot open folder '", path, "'"), errno);
    FolderClaim claim(fd, path);
    // A file system without locks cannot tell, and is none to keep anybody from working on.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
      if (Names(path, fd)) {
        if (access(path.c_str(), W_OK | X_OK) == 0) return claim;
        return ErrnoStatus(absl::StrCat("cannot write to folder '", path, "'"), errno);
      }
    } else if (deadline.Expired()) {
      claim.path_.clear();
      return absl::AlreadyExistsError(
          absl::StrCat("another run writes its checkpoints to '", path,
                       "'; wait for its end or cancel it, or write elsewhere"));
    }
    claim.path_.clear();
    absl::SleepFor(kPause);
  }
}

FolderClaim::FolderClaim(FolderClaim&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

FolderClaim& FolderClaim::operator=(FolderClaim&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

FolderClaim::~FolderClaim() {
  if (fd_ < 0) return;
  // Does nothing to one that has checkpoints.
  if (!path_.empty() && Names(path_, fd_)) rmdir(path_.c_str());
  close(fd_);
}

Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(absl::StrCat("cannot open folder '", path, "'"), errno);
  const absl::Cleanup closer = [fd] { close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(absl::StrCat("cannot sync folder '", path, "'"), errno);
  return absl::OkStatus();
}

Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrorCode("cannot remove", path, error) : absl::OkStatus();
}

StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator it(path, error);
  if (error) return ErrorCode("cannot list", path, error);
  std::vector<std::string> names;
  while (it != std::filesystem::directory_iterator()) {
    names.push_back(it->path().filename().string());
    it.increment(error);
    if (error) return ErrorCode("cannot list", path, error);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace weft::ckpt
