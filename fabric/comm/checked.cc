// Before each call every rank tells the others what it is about to do, in a record of fixed size.
// Ranks in a point-to-point call tell their partner only.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/base/error_detail.h"
#include "fabric/base/hash.h"
#include "fabric/comm/communicator.h"

namespace weft::comm {
namespace {

struct Fingerprint {
  uint64_t sequence;
  int64_t count;
  uint64_t label_hash;
  int32_t lanes;
  int32_t root;
  uint8_t kind;
  uint8_t dtype;
  uint8_t order;
  uint8_t point_to_point;
  char text[92];  // ToString(call), cut, ends in zero
};
static_assert(sizeof(Fingerprint) == 128);

std::string Describe(const Fingerprint& print) {
  const size_t length = strnlen(print.text, sizeof(print.text));
  return absl::StrCat("call ", print.sequence, " ", absl::string_view(print.text, length));
}

const KindRow* RowOf(Kind kind) {
  const size_t index = static_cast<size_t>(kind);
  return index < std::size(kKinds) ? &kKinds[index] : nullptr;
}

// The kind that a partner of `kind` must have.
uint8_t Partner(uint8_t kind) {
  if (kind == static_cast<uint8_t>(Kind::kSend)) return static_cast<uint8_t>(Kind::kRecv);
  if (kind == static_cast<uint8_t>(Kind::kRecv)) return static_cast<uint8_t>(Kind::kSend);
  return kind;
}

bool Agree(const Fingerprint& mine, const Fingerprint& other) {
  if (other.kind != Partner(mine.kind) || other.sequence != mine.sequence) return false;
  return other.count == mine.count && other.dtype == mine.dtype && other.order == mine.order &&
         other.lanes == mine.lanes && other.root == mine.root &&
         other.label_hash == mine.label_hash;
}

class Checked final : public Communicator {
 public:
  explicit Checked(std::unique_ptr<Communicator> inner)
      : inner_(std::move(inner)),
        gathered_(inner_->size()),
        collectives_(0),
        with_(inner_->size(), 0) {}

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  void Abort(const Status& cause) override { inner_->Abort(cause); }
  Status Health() override { return inner_->Health(); }
  Status Reserve(const CollectiveCall& call) override { return inner_->Reserve(call); }

  Status Launch(const CollectiveCall& call, StreamTag stream, Deadline deadline) override {
    const KindRow* row = RowOf(call.kind);
    // A record that is wrong by itself is the backend's to refuse.
    const bool pairs = row != nullptr && row->point_to_point;
    const bool valid =
        row != nullptr && (!pairs || (call.peer >= 0 && call.peer < size() && call.peer != rank()));
    if (valid && size() > 1) {
      RETURN_IF_ERROR(pairs ? ComparePair(call, stream, deadline)
                            : CompareAll(call, stream, deadline));
    }
    return inner_->Launch(call, stream, deadline);
  }

 private:
  Fingerprint PrintOf(const CollectiveCall& call, bool pairs) {
    Fingerprint print = {};
    print.sequence = pairs ? with_[call.peer]++ : collectives_++;
    print.kind = static_cast<uint8_t>(call.kind);
    print.point_to_point = pairs ? 1 : 0;
    print.root = call.kind == Kind::kBroadcast ? call.peer : -1;
    print.label_hash = StableHash(call.label == nullptr ? "" : call.label);
    if (call.kind != Kind::kBarrier) {
      print.count = call.count;
      print.dtype = static_cast<uint8_t>(call.dtype);
    }
    if (kKinds[print.kind].reduces) {
      print.order = static_cast<uint8_t>(call.order);
      if (!call.partials.empty()) print.lanes = call.lanes;
    }
    const std::string text = ToString(call);
    std::memcpy(print.text, text.data(), std::min(text.size(), sizeof(print.text) - 1));
    return print;
  }

  Status CompareAll(const CollectiveCall& call, StreamTag stream, Deadline deadline) {
    const Fingerprint mine = PrintOf(call, false);
    CollectiveCall gather;
    gather.kind = Kind::kAllGather;
    gather.dtype = DType::kU8;
    gather.count = static_cast<int64_t>(sizeof(Fingerprint)) * size();
    gather.send = &mine;
    gather.recv = gathered_.data();
    gather.label = "compare calls";
    RETURN_IF_ERROR(inner_->Launch(gather, stream, deadline));
    for (int32_t peer = 0; peer < size(); ++peer) {
      if (!Agree(mine, gathered_[peer])) return Refuse(mine, peer, gathered_[peer]);
    }
    return absl::OkStatus();
  }

  Status ComparePair(const CollectiveCall& call, StreamTag stream, Deadline deadline) {
    const Fingerprint mine = PrintOf(call, true);
    Fingerprint theirs = {};
    CollectiveCall tell;
    tell.dtype = DType::kU8;
    tell.count = sizeof(Fingerprint);
    tell.peer = call.peer;
    tell.send = &mine;
    tell.recv = &theirs;
    tell.label = "compare calls";
    // A record fits any transport's buffers, so both may send first.
    tell.kind = Kind::kSend;
    RETURN_IF_ERROR(inner_->Launch(tell, stream, deadline));
    tell.kind = Kind::kRecv;
    RETURN_IF_ERROR(inner_->Launch(tell, stream, deadline));
    if (!Agree(mine, theirs)) return Refuse(mine, call.peer, theirs);
    return absl::OkStatus();
  }

  // Names the lower rank first, so that both sides of a difference say the same.
  Status Refuse(const Fingerprint& mine, int32_t peer, const Fingerprint& theirs) {
    const bool first = rank() < peer;
    Status status =
        FailedPrecondition("ranks make different calls: rank ", first ? rank() : peer, " makes ",
                           Describe(first ? mine : theirs), ", rank ", first ? peer : rank(),
                           " makes ", Describe(first ? theirs : mine));
    ErrorDetail detail;
    detail.origin = "comm";
    detail.action = ErrorAction::kReportBug;
    status = WithDetail(status, detail);
    inner_->Abort(status);
    return status;
  }

  std::unique_ptr<Communicator> inner_;
  std::vector<Fingerprint> gathered_;  // by rank
  uint64_t collectives_;               // calls of all ranks so far
  std::vector<uint64_t> with_;         // by rank: point-to-point calls with it so far
};

}  // namespace

std::unique_ptr<Communicator> MakeChecked(std::unique_ptr<Communicator> inner) {
  return std::make_unique<Checked>(std::move(inner));
}

}  // namespace weft::comm
