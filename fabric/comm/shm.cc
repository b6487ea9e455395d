#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/comm/channel_communicator.h"
#include "fabric/comm/communicator.h"
#include "fabric/comm/memory_channel.h"
#include "fabric/comm/secret.h"

namespace weft::comm {
namespace {

// Watches processes through descriptors of them, which also tell of one that ended but was not
// reaped, and cannot mistake a later process with the same id.
class ProcessWatch final : public Liveness {
 public:
  explicit ProcessWatch(int32_t size) : descriptors_(size, -1) {}
  ~ProcessWatch() override {
    for (const int fd : descriptors_) {
      if (fd >= 0) close(fd);
    }
  }

  bool Ended(int32_t rank, int32_t process) override {
    if (process <= 0 || process == getpid()) return false;
    int& fd = descriptors_[rank];
    if (fd < 0) fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    if (fd < 0) return errno == ESRCH || (kill(process, 0) != 0 && errno == ESRCH);
    pollfd ended{fd, POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  }

 private:
  std::vector<int> descriptors_;  // by rank; -1: not opened
};

}  // namespace

StatusOr<std::unique_ptr<Communicator>> JoinSharedMemory(const GroupSpec& spec) {
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size) {
    return InvalidArgument("rank ", spec.rank, " of ", spec.size, " is no member of a group");
  }
  const int64_t bytes = SharedMemoryBytes(spec.size);
  struct stat about;
  if (fstat(spec.shared_memory_fd, &about) != 0) {
    return ErrnoStatus("the group's shared memory descriptor is not usable", errno);
  }
  if (about.st_size < bytes) {
    return InvalidArgument("the group's shared memory has ", about.st_size, " bytes, ", spec.size,
                           " ranks need ", bytes);
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Mapping> mapping, Mapping::Open(spec.shared_memory_fd, bytes));
  const Mac mac = MacOf(spec.secret, absl::StrCat("weft shared memory group of ", spec.size));
  const MemoryGroup group{std::move(mapping), spec.rank, spec.size,
                          std::string(mac.begin(), mac.end())};
  StatusOr<std::unique_ptr<Channel>> channel =
      JoinMemoryGroup(group, std::make_unique<ProcessWatch>(spec.size), spec.deadline);
  if (!channel.ok())
    return Annotate(channel.status(), absl::StrCat("rank ", spec.rank, " joining"));
  return MakeChannelCommunicator(std::move(*channel));
}

}  // namespace weft::comm
