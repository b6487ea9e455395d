// Channels through memory that all ranks of a group map: a ring of bytes for each ordered pair of
// ranks and a word on which each rank sleeps. The memory begins as zeros and serves one group once.
//
// Ranks are processes (shm.cc) or threads (in_process.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/comm/channel.h"

namespace weft::comm {

// A mapping that ends with the object.
class Mapping {
 public:
  // Shared memory of `fd`; anonymous memory where fd is -1.
  static StatusOr<std::shared_ptr<Mapping>> Open(int fd, int64_t bytes);
  Mapping(void* base, int64_t bytes) : base_(base), bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  std::byte* base() const { return static_cast<std::byte*>(base_); }

 private:
  void* base_;
  int64_t bytes_;
};

struct MemoryGroup {
  std::shared_ptr<Mapping> mapping;  // of SharedMemoryBytes(size)
  int32_t rank = 0;
  int32_t size = 1;
  std::string fingerprint;  // 32 bytes that all members share
};

// True when the process of a rank, by its id, has ended. Asked now and then while waiting.
class Liveness {
 public:
  virtual ~Liveness() = default;
  virtual bool Ended(int32_t rank, int32_t process) = 0;
};

// Takes the rank's place and waits until all others have taken theirs. FailedPrecondition where the
// place is taken or a member has another fingerprint.
StatusOr<std::unique_ptr<Channel>> JoinMemoryGroup(const MemoryGroup& group,
                                                   std::unique_ptr<Liveness> liveness,
                                                   Deadline deadline);

// The same without the wait, for ranks whose members are all made by one thread.
StatusOr<std::unique_ptr<Channel>> EnterMemoryGroup(const MemoryGroup& group,
                                                    std::unique_ptr<Liveness> liveness);

}  // namespace weft::comm
