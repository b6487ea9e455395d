// The NCCL communicator with each rank a process of its own: all kinds of collective, the bits of
// ordered reductions, recorded calls, joining again, and ranks that are killed.
//
//   nccl_ranks RANKS [DEVICES]
//
// With more ranks than devices NCCL must be 2.30 or newer. Prints a line a phase and exits with 1
// when one failed; takes less than a minute.

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

#include "fabric/base/lane_tree.h"
#include "fabric/base/log.h"
#include "fabric/comm/cases.h"
#include "fabric/comm/communicator.h"
#include "tests/comm/exchange.h"
#include "tests/comm/lane_values.h"
#include "tests/gpu/rank_processes.h"
#include "worker/core/device/device.h"
#include "worker/core/device/nccl_communicator.h"
#include "worker/core/device/step_kernels.h"

namespace weft {
namespace {

using comm::CollectiveCall;
using comm::Kind;
using comm::Order;

// Of all rounds together, and of any one wait.
constexpr absl::Duration kWhole = absl::Seconds(55);
constexpr absl::Duration kLimit = absl::Seconds(15);
constexpr int64_t kArena = 64 << 20;

struct Setting {
  int32_t ranks = 2;
  int32_t devices = 1;
};

// A piece of device memory with as much pinned memory beside it.
struct Block {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  int64_t bytes = 0;
  float* floats() const { return reinterpret_cast<float*>(device); }
};

// One rank: its device, its memory and its place in the group. Nothing waits without a limit.
class Member {
 public:
  Member(int32_t rank, PhaseNotes* notes) : rank_(rank), notes_(*notes) {}
  ~Member();

  Status Open(const Setting& setting);
  // Leaves the old group, if any, and joins that of `memory`.
  Status Join(int memory, int32_t rank, int32_t size);

  int32_t rank() const { return rank_; }
  int32_t size() const { return nccl_->size(); }
  Device& device() { return *device_; }
  StreamTag stream() const { return stream_; }
  NcclCommunicator& nccl() { return *nccl_; }
  PhaseNotes& notes() { return notes_; }
  void Drop() { nccl_.reset(); }

  StatusOr<Block> Take(int64_t bytes);
  void TakeBack() { taken_ = 0; }
  Status ToDevice(const Block& block);
  Status ToHost(const Block& block);
  Status Launch(const CollectiveCall& call);
  // Until the stream is done.
  Status Drain();
  StatusOr<GraphTag> Record(absl::FunctionRef<Status()> queue);

 private:
  int32_t rank_;
  PhaseNotes& notes_;
  std::unique_ptr<Device> device_;
  StreamTag stream_;
  EventTag event_;
  Block arena_;
  int64_t taken_ = 0;
  std::unique_ptr<comm::Communicator> host_;
  std::unique_ptr<NcclCommunicator> nccl_;
};

Member::~Member() {
  nccl_.reset();
  if (device_ == nullptr) return;
  device_->DestroyEvent(event_);
  device_->DestroyStream(stream_);
}

Status Member::Open(const Setting& setting) {
  ASSIGN_OR_RETURN(device_, MakeCudaDevice(rank_ % setting.devices));
  ASSIGN_OR_RETURN(stream_, device_->CreateStream());
  ASSIGN_OR_RETURN(event_, device_->CreateEvent());
  ASSIGN_OR_RETURN(void* const data, device_->Allocate(kArena));
  ASSIGN_OR_RETURN(void* const pinned, device_->AllocatePinned(kArena));
  arena_ = {static_cast<std::byte*>(data), static_cast<std::byte*>(pinned), kArena};
  return absl::OkStatus();
}

Status Member::Join(int memory, int32_t rank, int32_t size) {
  nccl_.reset();
  host_.reset();
  comm::GroupSpec spec;
  spec.rank = rank;
  spec.size = size;
  spec.secret = "secret";
  spec.shared_memory_fd = memory;
  spec.deadline = Deadline::After(kLimit);
  ASSIGN_OR_RETURN(host_, comm::JoinSharedMemory(spec));
  ASSIGN_OR_RETURN(nccl_, JoinNcclOver(host_.get(), device_.get(), Deadline::After(kLimit)));
  rank_ = rank;
  return nccl_->Health();
}

StatusOr<Block> Member::Take(int64_t bytes) {
  constexpr int64_t kAlign = 256;
  if (taken_ + bytes > kArena) return ResourceExhausted("the test's memory is used up");
  const Block block{arena_.device + taken_, arena_.host + taken_, bytes};
  taken_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return block;
}

Status Member::ToDevice(const Block& block) {
  return device_->Copy(block.device, block.host, block.bytes, stream_);
}
Status Member::ToHost(const Block& block) {
  return device_->Copy(block.host, block.device, block.bytes, stream_);
}
Status Member::Launch(const CollectiveCall& call) {
  return nccl_->Launch(call, stream_, Deadline::After(kLimit));
}

Status Member::Drain() {
  RETURN_IF_ERROR(device_->Record(event_, stream_));
  return PollUntil("the stream", kLimit, [this] { return device_->Done(event_); });
}

StatusOr<GraphTag> Member::Record(absl::FunctionRef<Status()> queue) {
  RETURN_IF_ERROR(device_->BeginCapture(stream_));
  const Status queued = queue();
  const StatusOr<GraphTag> graph = device_->EndCapture(stream_);
  if (!queued.ok() && graph.ok()) device_->DestroyGraph(*graph);
  RETURN_IF_ERROR(queued);
  return graph;
}

// --- all kinds ---

// A call that was queued, and what must be in `result` once the stream is done.
struct Queued {
  std::string name;
  Block result;
  std::vector<std::byte> expected;
};

Status Compare(const std::vector<Queued>& calls) {
  for (const Queued& call : calls) {
    if (call.expected.empty() ||
        std::memcmp(call.result.host, call.expected.data(), call.expected.size()) == 0) {
      continue;
    }
    size_t at = 0;
    while (call.result.host[at] == call.expected[at]) ++at;
    return Internal(call.name, " gave other bits at byte ", at);
  }
  return absl::OkStatus();
}

StatusOr<Block> TakeFilled(Member& member, const std::vector<std::byte>& bytes) {
  ASSIGN_OR_RETURN(const Block block, member.Take(static_cast<int64_t>(bytes.size())));
  if (!bytes.empty()) std::memcpy(block.host, bytes.data(), bytes.size());
  RETURN_IF_ERROR(member.ToDevice(block));
  return block;
}

Status QueueCall(Member& member, CollectiveCall call, bool in_place, std::vector<Queued>* queued) {
  const comm::Exchange x = comm::MakeExchange(call, member.rank(), member.size());
  ASSIGN_OR_RETURN(const Block send, TakeFilled(member, x.send));
  Block recv = send;
  if (!in_place) {
    ASSIGN_OR_RETURN(recv, TakeFilled(member, x.recv));
  }
  call.send = send.device;
  call.recv = recv.device;
  RETURN_IF_ERROR(member.Launch(call));
  RETURN_IF_ERROR(member.ToHost(recv));
  queued->push_back({comm::ToString(call) + (in_place ? " in place" : ""), recv, x.expected});
  return absl::OkStatus();
}

Status RunKind(Member& member, Kind kind) {
  member.TakeBack();
  std::vector<Queued> queued;
  for (const comm::CommCase& row : comm::CommCases()) {
    if (row.kind != kind) continue;
    for (const CollectiveCall& call : comm::CallsOf(row, member.rank(), member.size())) {
      RETURN_IF_ERROR(QueueCall(member, call, /*in_place=*/false, &queued));
      if (kind != Kind::kAllReduce) continue;
      RETURN_IF_ERROR(QueueCall(member, call, /*in_place=*/true, &queued));
    }
  }
  RETURN_IF_ERROR(member.Drain());
  return Compare(queued);
}

// --- ordered bits ---

std::vector<std::byte> BytesOf(const std::vector<float>& values, comm::Chunk part) {
  std::vector<std::byte> bytes(static_cast<size_t>(part.size) * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data() + part.begin, bytes.size());
  return bytes;
}

enum class Result { kApart, kOverFirst, kOverLast };

Status QueueOrdered(Member& member, int32_t lanes, const comm::Holding& held,
                    const std::vector<float>& sum, Kind kind, Result result,
                    std::vector<Queued>* queued) {
  const int64_t count = static_cast<int64_t>(sum.size());
  std::vector<Block> blocks;
  std::vector<comm::Partial> partials;
  for (size_t i = 0; i < held.nodes.size(); ++i) {
    ASSIGN_OR_RETURN(const Block block, TakeFilled(member, BytesOf(held.sums[i], {0, count})));
    blocks.push_back(block);
    partials.push_back({held.nodes[i], block.device});
  }
  const comm::Chunk own = kind == Kind::kAllReduce
                              ? comm::Chunk{0, count}
                              : comm::ChunkOf(count, member.size(), member.rank());
  Block recv = result == Result::kOverFirst ? blocks.front() : blocks.back();
  if (result == Result::kApart) {
    ASSIGN_OR_RETURN(recv, member.Take(own.size * static_cast<int64_t>(sizeof(float))));
  }
  CollectiveCall call;
  call.kind = kind;
  call.dtype = DType::kF32;
  call.count = count;
  call.recv = recv.device;
  call.order = Order::kOrdered;
  call.lanes = lanes;
  call.partials = partials;
  RETURN_IF_ERROR(member.Launch(call));
  RETURN_IF_ERROR(member.ToHost(recv));
  queued->push_back({comm::ToString(call), recv, BytesOf(sum, own)});
  return absl::OkStatus();
}

Status RunOrderedBits(Member& member) {
  struct Row {
    int32_t lanes;
    int64_t count;
  };
  const int32_t size = member.size();
  // One exchange; a gather too; no tail; unequal nodes.
  const Row rows[] = {{12, 1},     {12, 333},     {12, 2049},       {12, 140003},
                      {7, 999},    {7, 30011},    {13, 70001},      {size, 65536},
                      {size, 257}, {size, 65537}, {2 * size, 65536}};
  for (const auto [lanes, count] : rows) {
    if (lanes < size) continue;
    member.TakeBack();
    std::vector<Queued> queued;
    const auto values = comm::LaneValues(lanes, count);
    const auto sum = comm::NodeValue(lanes, {0, lanes}, values);
    const comm::Holding held = comm::Share(lanes, size, values)[member.rank()];
    for (const Result result : {Result::kApart, Result::kOverFirst, Result::kOverLast}) {
      RETURN_IF_ERROR(QueueOrdered(member, lanes, held, sum, Kind::kAllReduce, result, &queued));
    }
    RETURN_IF_ERROR(
        QueueOrdered(member, lanes, held, sum, Kind::kReduceScatter, Result::kApart, &queued));
    RETURN_IF_ERROR(member.Drain());
    RETURN_IF_ERROR(Compare(queued));
  }
  return absl::OkStatus();
}

// --- recorded calls ---

// A graph that goes before the communicator that it holds.
class OwnedGraph {
 public:
  explicit OwnedGraph(Device* device) : device_(*device) {}
  OwnedGraph(const OwnedGraph&) = delete;
  ~OwnedGraph() { Destroy(); }
  Status Set(StatusOr<GraphTag> graph) {
    RETURN_IF_ERROR(graph.status());
    graph_ = *graph;
    return absl::OkStatus();
  }
  GraphTag get() const { return graph_; }
  void Destroy() {
    device_.DestroyGraph(graph_);
    graph_ = {};
  }

 private:
  Device& device_;
  GraphTag graph_;
};

float RingValue(int32_t rank, int64_t i, int replay) {
  return static_cast<float>((i * 7 + rank * 31 + replay) % 101);
}

// An ordered and a ring reduction with fixed addresses, and new inputs for each replay.
class Replayed {
 public:
  static constexpr int64_t kCount = 20011;

  explicit Replayed(Member* member) : member_(*member), lanes_(std::max(12, member->size())) {}

  Status Prepare() {
    member_.TakeBack();
    const int32_t size = member_.size(), rank = member_.rank();
    for (const LaneRange node : MaximalNodes(lanes_, OwnedLanes(lanes_, size, rank))) {
      ASSIGN_OR_RETURN(const Block block, member_.Take(kBytes));
      blocks_.push_back(block);
      partials_.push_back({node, block.device});
    }
    ASSIGN_OR_RETURN(ordered_, member_.Take(kBytes));
    ASSIGN_OR_RETURN(ring_, member_.Take(kBytes));
    return member_.nccl().Reserve(OrderedCall());
  }

  Status Queue() {
    RETURN_IF_ERROR(member_.Launch(OrderedCall()));
    CollectiveCall ring;
    ring.kind = Kind::kAllReduce;
    ring.count = kCount;
    ring.send = ring.recv = ring_.device;
    return member_.Launch(ring);
  }

  Status Replay(int replay, GraphTag graph) {
    const int32_t size = member_.size();
    // Another seed each time; the values beyond kCount are not used.
    const auto values = comm::LaneValues(lanes_, kCount + replay);
    const comm::Holding held = comm::Share(lanes_, size, values)[member_.rank()];
    for (size_t i = 0; i < blocks_.size(); ++i) {
      std::memcpy(blocks_[i].host, held.sums[i].data(), kBytes);
      RETURN_IF_ERROR(member_.ToDevice(blocks_[i]));
    }
    std::vector<float> mine(kCount), sums(kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      mine[i] = RingValue(member_.rank(), i, replay);
      for (int32_t rank = 0; rank < size; ++rank) sums[i] += RingValue(rank, i, replay);
    }
    std::memcpy(ring_.host, mine.data(), kBytes);
    RETURN_IF_ERROR(member_.ToDevice(ring_));
    RETURN_IF_ERROR(member_.device().LaunchGraph(graph, member_.stream()));
    RETURN_IF_ERROR(member_.ToHost(ordered_));
    RETURN_IF_ERROR(member_.ToHost(ring_));
    RETURN_IF_ERROR(member_.Drain());
    const auto tree = comm::NodeValue(lanes_, {0, lanes_}, values);
    return Compare({{"recorded ordered", ordered_, BytesOf(tree, {0, kCount})},
                    {"recorded ring", ring_, BytesOf(sums, {0, kCount})}});
  }

 private:
  static constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(float));

  CollectiveCall OrderedCall() const {
    CollectiveCall call;
    call.kind = Kind::kAllReduce;
    call.count = kCount;
    call.recv = ordered_.device;
    call.order = Order::kOrdered;
    call.lanes = lanes_;
    call.partials = partials_;
    return call;
  }

  Member& member_;
  const int32_t lanes_;
  std::vector<Block> blocks_;
  std::vector<comm::Partial> partials_;
  Block ordered_, ring_;
};

Status RunRecorded(Member& member) {
  Replayed replayed(&member);
  RETURN_IF_ERROR(replayed.Prepare());
  OwnedGraph even(&member.device()), odd(&member.device());
  for (OwnedGraph* graph : {&even, &odd}) {
    RETURN_IF_ERROR(graph->Set(member.Record([&] { return replayed.Queue(); })));
  }
  for (int replay = 0; replay < 10; ++replay) {
    RETURN_IF_ERROR(replayed.Replay(replay, (replay % 2 == 0 ? even : odd).get()));
  }
  return absl::OkStatus();
}

Status Expect(const char* what, absl::StatusCode code, const Status& status) {
  if (status.code() == code) return absl::OkStatus();
  return Internal(what, ": expected ", absl::StatusCodeToString(code), ", got ", status.ToString());
}

// Recording what needs memory that is not there is refused, which ends the group.
Status RunUnreserved(Member& member) {
  if (member.size() == 1) return absl::OkStatus();
  member.TakeBack();
  CollectiveCall call;
  call.kind = Kind::kReduceScatter;
  call.count = 8 << 20;
  call.order = Order::kOrdered;
  ASSIGN_OR_RETURN(const Block block, member.Take(call.count * sizeof(float)));
  ASSIGN_OR_RETURN(const Block recv, member.Take(call.count / 2 * sizeof(float)));
  call.send = block.device;
  call.recv = recv.device;
  const auto graph = member.Record([&] { return member.Launch(call); });
  RETURN_IF_ERROR(
      Expect("recording without Reserve", absl::StatusCode::kFailedPrecondition, graph.status()));
  RETURN_IF_ERROR(Expect("the call after it", absl::StatusCode::kFailedPrecondition,
                         member.Launch(CollectiveCall())));
  RETURN_IF_ERROR(Expect("health", absl::StatusCode::kFailedPrecondition, member.nccl().Health()));
  return member.nccl().JoinAbort(Deadline::After(kLimit));
}

// A graph that still holds the communicator delays its end, but not its owner.
Status RunDropWithGraph(Member& member) {
  OwnedGraph graph(&member.device());
  RETURN_IF_ERROR(graph.Set(member.Record([&] { return member.Launch(CollectiveCall()); })));
  RETURN_IF_ERROR(member.device().LaunchGraph(graph.get(), member.stream()));
  RETURN_IF_ERROR(member.Drain());
  const Deadline deadline = Deadline::After(absl::Seconds(7));
  member.Drop();
  if (deadline.Expired()) return Internal("the communicator's end took too long");
  return absl::OkStatus();
}

// --- a rank is killed ---

// A loop of recorded steps like a trainer's: all_reduce, gate, and a slot that tells how it went.
class Steps {
 public:
  Steps(Member* member, Order order) : member_(*member), order_(order), graph_(&member->device()) {}

  Status Prepare() {
    member_.TakeBack();
    ASSIGN_OR_RETURN(send_, member_.Take(kCount * sizeof(float)));
    ASSIGN_OR_RETURN(recv_, member_.Take(kCount * sizeof(float)));
    ASSIGN_OR_RETURN(words_, member_.Take(256));
    ASSIGN_OR_RETURN(slots_, member_.Take(kSlots * sizeof(StepSlot)));
    ASSIGN_OR_RETURN(control_, member_.Take(sizeof(StepControl)));
    for (const Block& block : {words_, slots_, control_}) std::memset(block.host, 0, block.bytes);
    auto* const values = reinterpret_cast<float*>(send_.host);
    for (int64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(member_.rank() + 1);
    RETURN_IF_ERROR(member_.ToDevice(send_));
    RETURN_IF_ERROR(member_.ToDevice(words_));
    RETURN_IF_ERROR(member_.nccl().Reserve(Call()));
    return graph_.Set(member_.Record([this] { return QueueStep(); }));
  }

  Status Launch() {
    ++launched_;
    return member_.device().LaunchGraph(graph_.get(), member_.stream());
  }
  int64_t launched() const { return launched_; }
  bool Reached(int64_t step) const {
    return __atomic_load_n(&Slot(step)->sequence, __ATOMIC_ACQUIRE) ==
           static_cast<uint64_t>(step) + 1;
  }
  bool Open(int64_t step) const { return Slot(step)->gate == kGateOpen; }
  float sum() const { return static_cast<float>(member_.size() * (member_.size() + 1) / 2); }

  // That `step` ended with the right sum, or was given up.
  Status Check(int64_t step) const {
    const StepSlot* const slot = Slot(step);
    if (!Reached(step)) return Internal("step ", step, " left no trace");
    if (slot->gate == kGatePoisoned) return absl::OkStatus();
    if (slot->gate == kGateOpen && slot->stats[0] == sum() && slot->stats[1] == sum()) {
      return absl::OkStatus();
    }
    return Internal("step ", step, ": gate ", slot->gate, ", sums ", slot->stats[0], " and ",
                    slot->stats[1], ", expected ", sum());
  }

  void Poison() {
    auto* const control = reinterpret_cast<StepControl*>(control_.host);
    *const_cast<volatile int32_t*>(&control->poison) = 1;
  }
  void DestroyGraph() { graph_.Destroy(); }

  Status CheckResult() {
    RETURN_IF_ERROR(member_.ToHost(recv_));
    RETURN_IF_ERROR(member_.Drain());
    return Compare(
        {{"the last step", recv_, BytesOf(std::vector<float>(kCount, sum()), {0, kCount})}});
  }

 private:
  static constexpr int64_t kCount = 100003;
  static constexpr int kSlots = 8;

  StepSlot* Slot(int64_t step) const {
    return reinterpret_cast<StepSlot*>(slots_.host) + step % kSlots;
  }

  CollectiveCall Call() const {
    CollectiveCall call;
    call.kind = Kind::kAllReduce;
    call.count = kCount;
    call.send = send_.device;
    call.recv = recv_.device;
    call.order = order_;
    return call;
  }

  Status QueueStep() {
    void* const stream = member_.stream().handle;
    auto* const step = reinterpret_cast<int64_t*>(words_.device);
    auto* const gate = reinterpret_cast<int32_t*>(words_.device + 64);
    const auto* const control = reinterpret_cast<const StepControl*>(control_.host);
    RETURN_IF_ERROR(member_.Launch(Call()));
    int error = CheckStep(recv_.floats(), 0, 1, &control->poison, gate, stream);
    if (error == 0) {
      error = FinishStep(recv_.floats(), 2, recv_.floats() + 2, gate, step,
                         reinterpret_cast<StepSlot*>(slots_.host), kSlots, stream);
    }
    return error == 0 ? absl::OkStatus() : Internal(member_.device().Describe(error));
  }

  Member& member_;
  const Order order_;
  OwnedGraph graph_;
  Block send_, recv_, words_, slots_, control_;
  int64_t launched_ = 0;
};

// Steps that are launched before the oldest must have ended.
constexpr int64_t kAhead = 3;

// Until a death is known; `suicide` is the step at which this rank dies, or -1. Then there is one
// more step in flight, which cannot end.
Status RunUntilDeath(Member& member, Steps& steps, int64_t suicide) {
  PhaseNotes& notes = member.notes();
  const Deadline deadline = Deadline::After(kLimit);
  while (notes.dead() < 0) {
    const int64_t step = steps.launched();
    RETURN_IF_ERROR(steps.Launch());
    if (step == suicide) kill(getpid(), SIGKILL);
    if (step < kAhead) continue;
    RETURN_IF_ERROR(PollUntil("a step", kLimit, [&]() -> StatusOr<bool> {
      return steps.Reached(step - kAhead) || notes.dead() >= 0;
    }));
    if (steps.Reached(step - kAhead)) RETURN_IF_ERROR(steps.Check(step - kAhead));
    if (deadline.Expired()) return Internal("nobody died");
  }
  return steps.Launch();
}

Status AbortAndDrain(Member& member, Steps& steps) {
  steps.Poison();
  NcclCommunicator& nccl = member.nccl();
  nccl.Abort(Unavailable("rank ", member.notes().dead(), " was killed"));
  RETURN_IF_ERROR(Expect("health", absl::StatusCode::kUnavailable, nccl.Health()));
  RETURN_IF_ERROR(
      Expect("a call", absl::StatusCode::kUnavailable, member.Launch(CollectiveCall())));
  RETURN_IF_ERROR(member.Drain());
  const int64_t last = steps.launched() - 1;
  for (int64_t step = std::max<int64_t>(0, last - kAhead); step <= last; ++step) {
    RETURN_IF_ERROR(steps.Check(step));
  }
  return steps.Open(last) ? Internal("a step of all ranks ended without one of them")
                          : absl::OkStatus();
}

Status RunSteps(Member& member, Order order) {
  Steps steps(&member, order);
  RETURN_IF_ERROR(steps.Prepare());
  for (int64_t step = 0; step < 20; ++step) {
    RETURN_IF_ERROR(steps.Launch());
    RETURN_IF_ERROR(
        PollUntil("a step", kLimit, [&]() -> StatusOr<bool> { return steps.Reached(step); }));
    RETURN_IF_ERROR(steps.Check(step));
    if (!steps.Open(step)) return Internal("step ", step, " was given up");
  }
  return steps.CheckResult();
}

// --- rounds ---

int MakeSharedMemory(int32_t size) {
  const int fd = memfd_create("group", MFD_CLOEXEC);
  return fd >= 0 && ftruncate(fd, comm::SharedMemoryBytes(size)) == 0 ? fd : -1;
}

Status KindsRound(const Setting& setting, int first, int second, int32_t rank, PhaseNotes& notes) {
  Member member(rank, &notes);
  RETURN_IF_ERROR(notes.Run("open device", [&] { return member.Open(setting); }));
  RETURN_IF_ERROR(notes.Run("join", [&] { return member.Join(first, rank, setting.ranks); }));
  for (const comm::KindRow& kind : comm::kKinds) {
    RETURN_IF_ERROR(notes.Run(kind.name, [&] { return RunKind(member, kind.kind); }));
  }
  RETURN_IF_ERROR(notes.Run("ordered bits", [&] { return RunOrderedBits(member); }));
  RETURN_IF_ERROR(notes.Run("recorded", [&] { return RunRecorded(member); }));
  RETURN_IF_ERROR(notes.Run("recorded, not reserved", [&] { return RunUnreserved(member); }));
  RETURN_IF_ERROR(
      notes.Run("join again", [&] { return member.Join(second, rank, setting.ranks); }));
  RETURN_IF_ERROR(notes.Run("all_reduce again", [&] { return RunKind(member, Kind::kAllReduce); }));
  return notes.Run("drop with a graph", [&] { return RunDropWithGraph(member); });
}

Status KillRound(const Setting& setting, int first, int second, Order order, int32_t victim,
                 int32_t rank, PhaseNotes& notes) {
  constexpr int64_t kLastStep = 20;
  Member member(rank, &notes);
  RETURN_IF_ERROR(notes.Run("open device", [&] { return member.Open(setting); }));
  RETURN_IF_ERROR(notes.Run("join", [&] { return member.Join(first, rank, setting.ranks); }));
  Steps steps(&member, order);
  RETURN_IF_ERROR(notes.Run("record", [&] { return steps.Prepare(); }));
  RETURN_IF_ERROR(notes.Run("steps until the kill", [&] {
    return RunUntilDeath(member, steps, rank == victim ? kLastStep : -1);
  }));
  RETURN_IF_ERROR(notes.Run("abort, drain, gate", [&] { return AbortAndDrain(member, steps); }));
  RETURN_IF_ERROR(notes.Run("destroy graph, join abort", [&] {
    steps.DestroyGraph();
    return member.nccl().JoinAbort(Deadline::After(kLimit));
  }));
  RETURN_IF_ERROR(notes.Run("join without it", [&] {
    return member.Join(second, rank - (rank > victim ? 1 : 0), setting.ranks - 1);
  }));
  RETURN_IF_ERROR(notes.Run("steps without it", [&] { return RunSteps(member, order); }));
  return notes.Run("drop", [&] {
    member.Drop();
    return absl::OkStatus();
  });
}

bool RunAll(const Setting& setting) {
  const Deadline deadline = Deadline::After(kWhole);
  const int32_t ranks = setting.ranks;
  const std::string many = absl::StrCat(ranks, " ranks");
  const int all[] = {MakeSharedMemory(ranks), MakeSharedMemory(ranks)};
  bool good = RunRanks(many, ranks, /*victim=*/-1, deadline, [&](int32_t rank, PhaseNotes& notes) {
    return KindsRound(setting, all[0], all[1], rank, notes);
  });
  for (const Order order : {Order::kRing, Order::kOrdered}) {
    if (ranks == 1) break;
    const int32_t victim = order == Order::kRing ? ranks - 1 : 0;
    const int first = MakeSharedMemory(ranks), second = MakeSharedMemory(ranks - 1);
    const std::string title =
        absl::StrCat(many, order == Order::kRing ? ", ring" : ", ordered", ", kill ", victim);
    good &= RunRanks(title, ranks, victim, deadline, [&](int32_t rank, PhaseNotes& notes) {
      return KillRound(setting, first, second, order, victim, rank, notes);
    });
  }
  return good;
}

int Main(int argc, char** argv) {
  Setting setting;
  setting.ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  setting.devices = argc > 2 ? std::atoi(argv[2]) : 1;
  if (setting.ranks < 1 || setting.ranks > Board::kMostRanks || setting.devices < 1) {
    std::fprintf(stderr, "usage: nccl_ranks RANKS [DEVICES], up to %d ranks\n", Board::kMostRanks);
    return 2;
  }
  if (setting.devices < setting.ranks) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  InitLog("nccl_ranks", "warn");
  const absl::Duration began = RealClock().Monotonic();
  const bool good = RunAll(setting);
  std::printf("%s %d ranks on %d devices in %.1f s\n", good ? "PASS" : "FAIL", setting.ranks,
              setting.devices, absl::ToDoubleSeconds(RealClock().Monotonic() - began));
  return good ? 0 : 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
