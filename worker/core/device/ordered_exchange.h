// The plan of an ordered reduction between devices: which elements of its partials a rank sends to
// whom, where it puts what comes, and in which order it adds. Pure integer arithmetic, so that it
// is tested without a device; the NCCL communicator carries it out.
//
//   exchange  each chunk's partials go to the chunk's owner; those of the tail to everyone
//   add       the owner adds its chunk in the lane tree's order, everyone the tail
//   gather    all_reduce only: the chunks' sums go to everyone, in place in recv
//
// An all_reduce is cut into equal chunks of whole 256 bytes, so that the gather is a plain
// all_gather and addresses stay aligned; the tail is what is left, or all of a small call, which
// then needs one exchange and no gather. A reduce_scatter has the contract's chunks (ChunkOf) and
// no tail. The cut does not show in the result: every element meets its partials in the same tree.
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/comm/collective.h"

namespace weft {

struct ExchangeCall {
  comm::Kind kind = comm::Kind::kAllReduce;  // or kReduceScatter
  int64_t count = 0;
  int64_t element = 4;  // bytes
  int32_t lanes = 1;
  int32_t rank = 0;
  int32_t size = 1;
  // all_reduce: recv holds none of this rank's partials, so what comes may be put there.
  bool recv_is_free = false;
};

// Elements [begin, begin + count) of an own partial. Sends to one peer, and receives from it, are
// matched in order.
struct ExchangeSend {
  int32_t peer = -1;
  int32_t partial = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// Elements from the start of an own partial, of recv or of the scratch memory.
struct ExchangePlace {
  enum class Where : uint8_t { kPartial, kRecv, kScratch };
  Where where = Where::kScratch;
  int32_t partial = 0;
  int64_t at = 0;
};

struct ExchangeRecv {
  int32_t peer = -1;
  ExchangePlace to;
  int64_t count = 0;
};

// recv[to, to + count) = the nodes' values added as `adds` says.
struct ExchangeSum {
  std::vector<ExchangePlace> nodes;  // of all ranks, in lane order
  int64_t to = 0;
  int64_t count = 0;
};

struct OrderedExchange {
  std::vector<ExchangeSend> sends;
  std::vector<ExchangeRecv> recvs;
  std::vector<ExchangeSum> sums;
  // The tree as a program for a stack: node n is pushed, then adds[n] times the two topmost values
  // become their sum, the older one to the left. `depth` values at most are on the stack.
  std::vector<uint8_t> adds;
  int32_t depth = 0;
  int64_t gather = 0;   // elements that each rank gives to the all_gather; 0: there is none
  int64_t scratch = 0;  // elements
};

// The call has passed CheckCall.
OrderedExchange PlanExchange(const ExchangeCall& call);

}  // namespace weft
