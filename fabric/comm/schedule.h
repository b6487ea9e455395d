// Schedule: one rank's part of a collective as a list of steps, and the one loop that runs it over
// a Channel.
//
// Sends to a peer, and receives from it, happen in the order in which they were added; everything
// else as soon as it can. Not thread-safe; the memory that steps name outlives the run. Meant to be
// reused: Clear keeps the storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "fabric/base/clock.h"
#include "fabric/base/dtype.h"
#include "fabric/base/status.h"
#include "fabric/comm/channel.h"

namespace weft::comm {

class Schedule {
 public:
  // A step's index; kNone stands for "at once" and for steps of no bytes, which are done before
  // they begin.
  static constexpr int32_t kNone = -1;

  void Clear(int32_t ranks, DType dtype);

  // Sends bytes [0, n) as soon as step `after` has done n bytes: a send follows a receive piece by
  // piece.
  int32_t Send(int32_t peer, const void* from, int64_t bytes, int32_t after = kNone);
  int32_t Recv(int32_t peer, void* to, int64_t bytes);
  // to = addend + what comes. `to` may be `addend`.
  int32_t RecvAdd(int32_t peer, const void* addend, void* to, int64_t bytes);
  // Runs the reduction of `block` once all steps that feed it are done.
  int32_t Reduce(int32_t block, int64_t bytes);
  // `feeds` is a Reduce; the receive begins when step `after` is complete.
  int32_t SendFor(int32_t feeds, int32_t peer, const void* from, int64_t bytes);
  int32_t RecvFor(int32_t feeds, int32_t peer, void* to, int64_t bytes, int32_t after);

  // What Reduce(block) does.
  void set_reduction(std::function<void(int32_t block)> reduction) {
    reduction_ = std::move(reduction);
  }

  Status Run(Channel& channel, Deadline deadline);

 private:
  enum class What : uint8_t { kSend, kRecv, kRecvAdd, kReduce };
  struct Step {
    What what = What::kSend;
    int32_t peer = -1;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t bytes = 0;
    int64_t done = 0;
    int32_t after = kNone;
    int32_t feeds = kNone;
    int32_t block = 0;
    int32_t waiting = 0;  // kReduce: steps feeding it that are not done
    bool complete() const { return done == bytes; }
  };
  // Steps with one peer in order, and how far they are.
  struct Queue {
    std::vector<int32_t> steps;
    size_t at = 0;
    bool empty() const { return at == steps.size(); }
    int32_t front() const { return steps[at]; }
  };

  int32_t Push(const Step& step);
  StatusOr<bool> AdvanceSend(Channel& channel, int32_t peer);
  StatusOr<bool> AdvanceRecv(Channel& channel, int32_t peer);
  StatusOr<int64_t> Take(Channel& channel, Step& step);
  void Finish(const Step& step);
  void RunReduce(Step& step);
  int64_t Ready(const Step& send) const;
  bool Gated(const Step& recv) const;
  void CollectWants();
  Status GaveUp() const;

  DType dtype_ = DType::kF32;
  std::vector<Step> steps_;
  std::vector<Queue> sends_, recvs_;  // by peer
  std::vector<Want> wants_;
  std::function<void(int32_t)> reduction_;
  int64_t open_ = 0;  // steps that are not complete
};

}  // namespace weft::comm
