// Communicator: one rank's end of a group. Backends and decorators implement the same two verbs.
//
// Contract: all ranks make the same calls in the same order (send/recv pairs match); one call at a
// time from one thread; Abort from any thread. recv is defined only when the call returned OK.
// After the first error the group is dead: every later call returns that error at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/base/stream.h"
#include "fabric/comm/collective.h"

namespace weft::comm {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Runs `call`. Host backends have finished when it returns; device backends have enqueued it on
  // `stream`. Codes: InvalidArgument (bad record), Unavailable (a peer is gone; names its rank),
  // DeadlineExceeded, Aborted (by Abort), DataLoss (checksum), FailedPrecondition (ranks disagree
  // about the call).
  virtual Status Launch(const CollectiveCall& call, StreamTag stream, Deadline deadline) = 0;

  // Makes what Launch(call) will need, for device backends whose calls are recorded: recording
  // cannot make it. Host backends need nothing.
  virtual Status Reserve(const CollectiveCall& /*call*/) { return absl::OkStatus(); }

  // Not OK once enqueued work can no longer end: a peer is gone, or Abort was called. Host
  // backends, whose calls have ended, are always well.
  virtual Status Health() { return absl::OkStatus(); }

  // Ends the running call and all later ones with `cause`, here and, where the link still works, on
  // the peers.
  virtual void Abort(const Status& cause) = 0;
};

// What a process must know to join a group.
struct GroupSpec {
  int32_t rank = 0;
  int32_t size = 1;
  std::string secret;                  // of the generation; a peer that does not know it is refused
  std::vector<std::string> endpoints;  // by rank, "host:port" (TCP)
  int shared_memory_fd = -1;  // shared memory: a descriptor all members inherited; not owned
  Deadline deadline = Deadline::Infinite();  // for the join
};

// A socket that listens before the group is known, so that its port can be told to the others.
class TcpListener {
 public:
  // Binds `host` ("127.0.0.1") to a port that the system chooses.
  static StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& host);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  std::string endpoint() const { return endpoint_; }  // "127.0.0.1:40123"
  int fd() const { return fd_; }

 private:
  TcpListener(int fd, std::string endpoint) : fd_(fd), endpoint_(std::move(endpoint)) {}
  int fd_;
  std::string endpoint_;
};

// A group of one: every collective is a copy.
std::unique_ptr<Communicator> MakeLoopback();

// `size` ranks as threads of this process.
std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(int32_t size);

// Processes of one node over a shared memory descriptor of at least SharedMemoryBytes(size).
int64_t SharedMemoryBytes(int32_t size);
StatusOr<std::unique_ptr<Communicator>> JoinSharedMemory(const GroupSpec& spec);

// Processes anywhere; framed, checksummed, authenticated.
StatusOr<std::unique_ptr<Communicator>> JoinTcp(const GroupSpec& spec,
                                                std::unique_ptr<TcpListener> listener);

// Decorators.
// Compares each call's kind, dtype, count, order and sequence number across ranks first; a
// difference is FailedPrecondition on all ranks, naming the ranks and both calls.
std::unique_ptr<Communicator> MakeChecked(std::unique_ptr<Communicator> inner);

}  // namespace weft::comm
