// Each kind of collective as NCCL calls. Reductions: the ring order is NCCL's own choice of
// algorithm; the ordered one is OrderedExchange's plan with AddInOrder between the two transfers.
#include "worker/core/device/nccl_communicator.h"

#ifdef WEFT_CUDA
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "fabric/base/error_detail.h"
#include "fabric/comm/call_check.h"
#include "worker/core/device/nccl_link.h"
#include "worker/core/device/ordered_exchange.h"
#include "worker/core/device/ordered_reduce.h"
#endif

namespace weft {

#ifndef WEFT_CUDA

namespace {

Status NoCuda() {
  return FailedPrecondition(
      "this build has no NCCL; install the CUDA toolkit, then build again with deploy/build.sh");
}

}  // namespace

StatusOr<std::string> NewNcclId() { return NoCuda(); }
StatusOr<std::unique_ptr<NcclCommunicator>> JoinNccl(const NcclSpec&) { return NoCuda(); }
StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclOver(comm::Communicator*, Device*, Deadline) {
  return NoCuda();
}

#else

namespace {

using comm::Chunk;
using comm::ChunkOf;
using comm::CollectiveCall;
using comm::Kind;
using comm::Order;

// What the barrier reduces.
constexpr int64_t kTokenBytes = 256;

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    default:
      return ncclFloat32;
  }
}

std::byte* At(void* base, int64_t offset) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
}
const std::byte* At(const void* base, int64_t offset) {
  return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + offset;
}

bool Overlap(const void* a, const void* b, int64_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(a), second = reinterpret_cast<uintptr_t>(b);
  const uintptr_t size = static_cast<uintptr_t>(bytes);
  return first < second + size && second < first + size;
}

// This rank's partials, in order.
std::vector<const void*> PartialsOf(const CollectiveCall& call) {
  std::vector<const void*> partials;
  for (const comm::Partial& partial : call.partials) partials.push_back(partial.data);
  if (partials.empty()) partials.push_back(call.send);
  return partials;
}

class NcclRank final : public NcclCommunicator {
 public:
  NcclRank(const NcclSpec& spec, std::shared_ptr<NcclLink> link, int processors, void* token)
      : rank_(spec.rank),
        size_(spec.size),
        device_(spec.device),
        processors_(processors),
        link_(std::move(link)),
        token_(token) {}
  ~NcclRank() override { link_->Close(); }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  Status Health() override { return link_->Health(); }
  void Abort(const Status& cause) override { link_->Abort(cause); }
  Status JoinAbort(Deadline deadline) override { return link_->JoinAbort(deadline); }

  Status Launch(const CollectiveCall& call, StreamTag stream, Deadline deadline) override {
    RETURN_IF_ERROR(link_->cause());
    Status status = comm::CheckCall(call, rank_, size_);
    if (status.ok()) status = Use();
    if (status.ok()) status = Enqueue(call, {static_cast<cudaStream_t>(stream.handle), deadline});
    if (status.ok()) return status;
    // The other ranks may have begun the call, so no later one can succeed. An earlier cause wins.
    link_->Abort(Explain(status, call));
    const Status cause = link_->cause();
    return cause.ok() ? status : cause;
  }

  Status Reserve(const CollectiveCall& call) override {
    RETURN_IF_ERROR(link_->cause());
    RETURN_IF_ERROR(comm::CheckCall(call, rank_, size_));
    RETURN_IF_ERROR(Use());
    if (!comm::kKinds[static_cast<size_t>(call.kind)].reduces || call.order != Order::kOrdered) {
      return absl::OkStatus();
    }
    const OrderedExchange plan = PlanOf(call);
    RETURN_IF_ERROR(CheckLimits(plan));
    return GrowScratch(plan.scratch * ElementOf(call));
  }

 private:
  // Where and until when a call is enqueued.
  struct Place {
    cudaStream_t stream;
    Deadline deadline;
  };

  static int64_t ElementOf(const CollectiveCall& call) {
    return static_cast<int64_t>(SizeOf(call.dtype));
  }

  // The runtime keeps the current device by thread.
  Status Use() { return Check(static_cast<int>(cudaSetDevice(device_)), "choosing the device"); }

  Status Check(int error, const char* doing) const {
    if (error == 0) return absl::OkStatus();
    return Internal("cuda:", device_, ": ", doing, ": ",
                    cudaGetErrorString(static_cast<cudaError_t>(error)));
  }

  Status Explain(const Status& status, const CollectiveCall& call) const {
    ErrorDetail detail;
    if (const auto known = GetErrorDetail(status); known.has_value()) detail = *known;
    detail.origin = "comm";
    if (detail.action == ErrorAction::kUnspecified) detail.action = ErrorAction::kRebuildComm;
    detail.op = comm::ToString(call);
    return WithDetail(Annotate(status, absl::StrCat(comm::ToString(call), " on rank ", rank_)),
                      detail);
  }

  Status Enqueue(const CollectiveCall& call, const Place& place) {
    if (call.count == 0 && call.kind != Kind::kBarrier) return absl::OkStatus();
    switch (call.kind) {
      case Kind::kAllReduce:
        return call.order == Order::kOrdered ? Ordered(call, place) : RingAllReduce(call, place);
      case Kind::kReduceScatter:
        return call.order == Order::kOrdered ? Ordered(call, place)
                                             : RingReduceScatter(call, place);
      case Kind::kAllGather:
        return AllGather(call, place);
      case Kind::kBroadcast:
        return Broadcast(call, place);
      case Kind::kAllToAll:
        return AllToAll(call, place);
      case Kind::kSend:
        return link_->Call("send", place.deadline, [&](ncclComm_t comm) {
          return ncclSend(call.send, call.count * ElementOf(call), ncclUint8, call.peer, comm,
                          place.stream);
        });
      case Kind::kRecv:
        return link_->Call("recv", place.deadline, [&](ncclComm_t comm) {
          return ncclRecv(call.recv, call.count * ElementOf(call), ncclUint8, call.peer, comm,
                          place.stream);
        });
      case Kind::kBarrier:
        return Barrier(place);
    }
    return absl::OkStatus();
  }

  Status Copy(void* to, const void* from, int64_t bytes, const Place& place) {
    if (bytes == 0 || to == from) return absl::OkStatus();
    return Check(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, place.stream),
        "copying");
  }

  Status RingAllReduce(const CollectiveCall& call, const Place& place) {
    if (size_ == 1) return Copy(call.recv, call.send, call.count * ElementOf(call), place);
    return link_->Call("all_reduce", place.deadline, [&](ncclComm_t comm) {
      return ncclAllReduce(call.send, call.recv, call.count, TypeOf(call.dtype), ncclSum, comm,
                           place.stream);
    });
  }

  // Uneven chunks go as reductions to each owner, which NCCL runs as one.
  Status RingReduceScatter(const CollectiveCall& call, const Place& place) {
    if (size_ == 1) return Copy(call.recv, call.send, call.count * ElementOf(call), place);
    const ncclDataType_t type = TypeOf(call.dtype);
    if (call.count % size_ == 0) {
      return link_->Call("reduce_scatter", place.deadline, [&](ncclComm_t comm) {
        return ncclReduceScatter(call.send, call.recv, call.count / size_, type, ncclSum, comm,
                                 place.stream);
      });
    }
    return link_->Group("reduce_scatter", place.deadline, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (int32_t owner = 0; owner < size_ && !NcclFailed(result); ++owner) {
        const Chunk chunk = ChunkOf(call.count, size_, owner);
        if (chunk.size == 0) continue;
        result = ncclReduce(At(call.send, chunk.begin * ElementOf(call)),
                            owner == rank_ ? call.recv : nullptr, chunk.size, type, ncclSum, owner,
                            comm, place.stream);
      }
      return result;
    });
  }

  Status AllGather(const CollectiveCall& call, const Place& place) {
    const int64_t element = ElementOf(call);
    if (size_ == 1) return Copy(call.recv, call.send, call.count * element, place);
    if (call.count % size_ == 0) {
      return GatherEqual(call.send, call.recv, call.count / size_ * element, place);
    }
    return link_->Group("all_gather", place.deadline, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (int32_t owner = 0; owner < size_ && !NcclFailed(result); ++owner) {
        const Chunk chunk = ChunkOf(call.count, size_, owner);
        if (chunk.size == 0) continue;
        std::byte* const to = At(call.recv, chunk.begin * element);
        result = ncclBroadcast(owner == rank_ ? call.send : to, to, chunk.size * element, ncclUint8,
                               owner, comm, place.stream);
      }
      return result;
    });
  }

  // In place when `send` is this rank's part of `recv`.
  Status GatherEqual(const void* send, void* recv, int64_t bytes, const Place& place) {
    return link_->Call("all_gather", place.deadline, [&](ncclComm_t comm) {
      return ncclAllGather(send, recv, bytes, ncclUint8, comm, place.stream);
    });
  }

  Status Broadcast(const CollectiveCall& call, const Place& place) {
    if (size_ == 1) return absl::OkStatus();
    return link_->Call("broadcast", place.deadline, [&](ncclComm_t comm) {
      return ncclBroadcast(call.recv, call.recv, call.count * ElementOf(call), ncclUint8, call.peer,
                           comm, place.stream);
    });
  }

  Status AllToAll(const CollectiveCall& call, const Place& place) {
    const int64_t bytes = call.count / size_ * ElementOf(call);
    RETURN_IF_ERROR(Copy(At(call.recv, rank_ * bytes), At(call.send, rank_ * bytes), bytes, place));
    if (size_ == 1) return absl::OkStatus();
    return link_->Group("all_to_all", place.deadline, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (int32_t i = 1; i < size_ && !NcclFailed(result); ++i) {
        const int32_t to = (rank_ + i) % size_, from = (rank_ - i + size_) % size_;
        result = ncclSend(At(call.send, to * bytes), bytes, ncclUint8, to, comm, place.stream);
        if (NcclFailed(result)) break;
        result = ncclRecv(At(call.recv, from * bytes), bytes, ncclUint8, from, comm, place.stream);
      }
      return result;
    });
  }

  Status Barrier(const Place& place) {
    if (size_ == 1) return absl::OkStatus();
    return link_->Call("barrier", place.deadline, [&](ncclComm_t comm) {
      return ncclAllReduce(token_, token_, 1, ncclInt32, ncclSum, comm, place.stream);
    });
  }

  // --- ordered reductions ---

  OrderedExchange PlanOf(const CollectiveCall& call) const {
    ExchangeCall exchange;
    exchange.kind = call.kind;
    exchange.count = call.count;
    exchange.element = ElementOf(call);
    exchange.lanes = comm::LanesOf(call, size_);
    exchange.rank = rank_;
    exchange.size = size_;
    exchange.recv_is_free = call.kind == Kind::kAllReduce;
    for (const void* partial : PartialsOf(call)) {
      if (Overlap(call.recv, partial, call.count * exchange.element)) exchange.recv_is_free = false;
    }
    return PlanExchange(exchange);
  }

  static Status CheckLimits(const OrderedExchange& plan) {
    if (plan.adds.size() <= OrderedSum::kMostNodes && plan.depth <= OrderedSum::kMostDepth) {
      return absl::OkStatus();
    }
    return FailedPrecondition("an ordered reduction on devices takes up to ",
                              OrderedSum::kMostNodes, " partials in a tree of depth ",
                              OrderedSum::kMostDepth, "; this one has ", plan.adds.size(), " and ",
                              plan.depth, ": use fewer lanes, or lanes that the ranks divide");
  }

  Status Ordered(const CollectiveCall& call, const Place& place) {
    const OrderedExchange plan = PlanOf(call);
    RETURN_IF_ERROR(CheckLimits(plan));
    RETURN_IF_ERROR(EnsureScratch(plan.scratch * ElementOf(call), place));
    if (!plan.sends.empty() || !plan.recvs.empty()) {
      RETURN_IF_ERROR(Exchange(call, plan, place));
    }
    for (const ExchangeSum& sum : plan.sums) RETURN_IF_ERROR(Add(call, plan, sum, place));
    if (plan.gather == 0) return absl::OkStatus();
    const int64_t bytes = plan.gather * ElementOf(call);
    return GatherEqual(At(call.recv, rank_ * bytes), call.recv, bytes, place);
  }

  // The address of `at`, as one that may be written: the plan receives into recv and scratch only.
  std::byte* AddressOf(const CollectiveCall& call, const ExchangePlace& at) const {
    const int64_t offset = at.at * ElementOf(call);
    switch (at.where) {
      case ExchangePlace::Where::kPartial:
        return At(const_cast<void*>(PartialsOf(call)[at.partial]), offset);
      case ExchangePlace::Where::kRecv:
        return At(call.recv, offset);
      case ExchangePlace::Where::kScratch:
        return At(scratch_, offset);
    }
    return nullptr;
  }

  Status Exchange(const CollectiveCall& call, const OrderedExchange& plan, const Place& place) {
    const int64_t element = ElementOf(call);
    const std::vector<const void*> partials = PartialsOf(call);
    return link_->Group("exchanging partials", place.deadline, [&](ncclComm_t comm) {
      for (const ExchangeSend& send : plan.sends) {
        const ncclResult_t result =
            ncclSend(At(partials[send.partial], send.begin * element), send.count * element,
                     ncclUint8, send.peer, comm, place.stream);
        if (NcclFailed(result)) return result;
      }
      for (const ExchangeRecv& recv : plan.recvs) {
        const ncclResult_t result = ncclRecv(AddressOf(call, recv.to), recv.count * element,
                                             ncclUint8, recv.peer, comm, place.stream);
        if (NcclFailed(result)) return result;
      }
      return ncclSuccess;
    });
  }

  Status Add(const CollectiveCall& call, const OrderedExchange& plan, const ExchangeSum& sum,
             const Place& place) {
    OrderedSum ordered;
    ordered.nodes = static_cast<int32_t>(plan.adds.size());
    ordered.depth = plan.depth;
    for (int32_t n = 0; n < ordered.nodes; ++n) {
      ordered.from[n] = AddressOf(call, sum.nodes[n]);
      ordered.adds[n] = plan.adds[n];
    }
    return Check(AddInOrder(call.dtype, ordered, At(call.recv, sum.to * ElementOf(call)), sum.count,
                            processors_, place.stream),
                 "adding partials");
  }

  Status EnsureScratch(int64_t bytes, const Place& place) {
    if (bytes <= scratch_bytes_) return absl::OkStatus();
    cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
    RETURN_IF_ERROR(
        Check(cudaStreamIsCapturing(place.stream, &recording), "asking for a recording"));
    if (recording != cudaStreamCaptureStatusNone) {
      return FailedPrecondition("the call needs ", bytes, " bytes of device memory, ",
                                scratch_bytes_, " are reserved: call Reserve before recording it");
    }
    // Growing by half more at least, since what was too small stays.
    return GrowScratch(std::max(bytes, scratch_bytes_ + scratch_bytes_ / 2));
  }

  Status GrowScratch(int64_t bytes) {
    if (bytes <= scratch_bytes_) return absl::OkStatus();
    ASSIGN_OR_RETURN(scratch_, link_->Allocate(bytes));
    scratch_bytes_ = bytes;
    return absl::OkStatus();
  }

  const int32_t rank_, size_;
  const int32_t device_;
  const int processors_;
  const std::shared_ptr<NcclLink> link_;
  void* const token_;  // device memory, kTokenBytes
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

// What each rank says before a group is joined. Travels as bytes between like processes.
struct Offer {
  int32_t ready = 0;
  int32_t version = 0;
  char id[NCCL_UNIQUE_ID_BYTES] = {};  // of rank 0
  char obstacle[248] = {};             // ends in zero
};
static_assert(sizeof(Offer) == 8 + NCCL_UNIQUE_ID_BYTES + 248);

StatusOr<Offer> MakeOffer(int32_t rank, const Device& device) {
  Offer offer;
  if (device.id().kind != DeviceKind::kCuda) {
    return FailedPrecondition("its device is ", NameOf(device.id().kind), ", not cuda");
  }
  if (device.poisoned()) return FailedPrecondition("an earlier error made its device unusable");
  RETURN_IF_ERROR(NcclStatus("asking for the version", ncclGetVersion(&offer.version)));
  RETURN_IF_ERROR(CheckNcclVersion());
  if (rank == 0) {
    ASSIGN_OR_RETURN(const std::string id, NewNcclId());
    std::memcpy(offer.id, id.data(), sizeof(offer.id));
  }
  offer.ready = 1;
  return offer;
}

StatusOr<std::vector<Offer>> ExchangeOffers(comm::Communicator* host, const Offer& mine,
                                            Deadline deadline) {
  std::vector<Offer> offers(static_cast<size_t>(host->size()));
  CollectiveCall gather;
  gather.kind = Kind::kAllGather;
  gather.dtype = DType::kU8;
  gather.count = static_cast<int64_t>(sizeof(Offer)) * host->size();
  gather.send = &mine;
  gather.recv = offers.data();
  gather.label = "nccl id";
  RETURN_IF_ERROR(host->Launch(gather, {}, deadline));
  return offers;
}

}  // namespace

StatusOr<std::string> NewNcclId() {
  RETURN_IF_ERROR(CheckNcclVersion());
  ncclUniqueId id;
  RETURN_IF_ERROR(NcclStatus("naming a group", ncclGetUniqueId(&id)));
  return std::string(id.internal, sizeof(id.internal));
}

StatusOr<std::unique_ptr<NcclCommunicator>> JoinNccl(const NcclSpec& spec) {
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size) {
    return InvalidArgument("rank ", spec.rank, " of ", spec.size, " is no member of a group");
  }
  ASSIGN_OR_RETURN(std::shared_ptr<NcclLink> link, NcclLink::Join(spec));
  const auto prepare = [&]() -> StatusOr<std::unique_ptr<NcclCommunicator>> {
    int processors = 0;
    int error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, spec.device);
    if (error == 0) error = LoadAddInOrder();
    ASSIGN_OR_RETURN(void* const token, link->Allocate(kTokenBytes));
    if (error == 0) error = cudaMemset(token, 0, kTokenBytes);
    if (error != 0) {
      return Internal("cuda:", spec.device, ": preparing ordered reductions: ",
                      cudaGetErrorString(static_cast<cudaError_t>(error)));
    }
    return std::unique_ptr<NcclCommunicator>(new NcclRank(spec, link, processors, token));
  };
  auto made = prepare();
  if (!made.ok()) {
    link->Abort(made.status());
    link->Close();
  }
  return made;
}

StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclOver(comm::Communicator* host, Device* device,
                                                         Deadline deadline) {
  StatusOr<Offer> made = MakeOffer(host->rank(), *device);
  Offer mine;
  if (made.ok()) {
    mine = *made;
  } else {
    const std::string text(made.status().message());
    std::memcpy(mine.obstacle, text.data(), std::min(text.size(), sizeof(mine.obstacle) - 1));
  }
  ASSIGN_OR_RETURN(const std::vector<Offer> offers, ExchangeOffers(host, mine, deadline));
  for (int32_t rank = 0; rank < host->size(); ++rank) {
    const Offer& offer = offers[static_cast<size_t>(rank)];
    if (offer.ready == 0) {
      return FailedPrecondition(
          "rank ", rank, " cannot join over NCCL: ",
          std::string(offer.obstacle, strnlen(offer.obstacle, sizeof(offer.obstacle))));
    }
    if (offer.version != offers[0].version) {
      return FailedPrecondition("the ranks have different NCCL versions: rank 0 ",
                                offers[0].version, ", rank ", rank, " ", offer.version);
    }
  }
  NcclSpec spec;
  spec.rank = host->rank();
  spec.size = host->size();
  spec.id.assign(offers[0].id, sizeof(offers[0].id));
  spec.device = device->id().index;
  spec.deadline = deadline;
  return JoinNccl(spec);
}

#endif  // WEFT_CUDA

}  // namespace weft
