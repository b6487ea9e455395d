#include "server/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "nlohmann/json.hpp"

#include "fabric/wire/auth.h"
#include "fabric/wire/channel.h"

namespace weft {

StatusOr<std::unique_ptr<StateDir>> StateDir::Open(const std::string& path) {
  if (path.empty()) return InvalidArgument("state_dir is required");
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StrCat("create state_dir ", path), errno);
  }
  const std::string lock_path = path + "/lock";
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(absl::StrCat("open ", lock_path), errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    close(fd);
    if (reason == EWOULDBLOCK) {
      return FailedPrecondition("another coordinator uses state_dir ", path,
                                "; end it or name another state_dir");
    }
    return ErrnoStatus(absl::StrCat("lock ", lock_path), reason);
  }
  return std::unique_ptr<StateDir>(new StateDir(path, fd));
}

StateDir::~StateDir() { close(lock_); }

StatusOr<std::string> StateDir::LoadToken() {
  return wire::ReadOrCreateTokenFile(wire::TokenPath(path_));
}

Status StateDir::WriteEndpoint(const std::string& address) {
  const std::string path = wire::EndpointPath(path_);
  const std::string temporary = path + ".new";
  const std::string line =
      nlohmann::json{{"address", address}, {"pid", static_cast<int64_t>(getpid())}}.dump() + "\n";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(absl::StrCat("create ", temporary), errno);
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return ErrnoStatus(absl::StrCat("write ", temporary), errno);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(absl::StrCat("rename to ", path), errno);
  }
  return absl::OkStatus();
}

void StateDir::RemoveEndpoint() { unlink(wire::EndpointPath(path_).c_str()); }

}  // namespace weft
