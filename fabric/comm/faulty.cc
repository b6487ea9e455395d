#include "fabric/comm/faulty.h"

#include <cstddef>
#include <utility>

namespace weft::comm {
namespace {

class Faulty final : public Communicator {
 public:
  Faulty(std::unique_ptr<Communicator> inner, Fault fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  void Abort(const Status& cause) override { inner_->Abort(cause); }
  Status Health() override { return inner_->Health(); }
  Status Reserve(const CollectiveCall& call) override { return inner_->Reserve(call); }

  Status Launch(const CollectiveCall& call, StreamTag stream, Deadline deadline) override {
    const bool now = calls_++ == fault_.at_call;
    if (now && fault_.before) fault_.before();
    if (now && !fault_.fail.ok()) {
      inner_->Abort(fault_.fail);
      return fault_.fail;
    }
    RETURN_IF_ERROR(inner_->Launch(call, stream, deadline));
    const bool received = call.kind != Kind::kSend && call.kind != Kind::kBarrier &&
                          call.recv != nullptr && call.count > 0;
    if (now && fault_.corrupt && received) *static_cast<std::byte*>(call.recv) ^= std::byte{1};
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<Communicator> inner_;
  Fault fault_;
  int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> MakeFaulty(std::unique_ptr<Communicator> inner, Fault fault) {
  return std::make_unique<Faulty>(std::move(inner), std::move(fault));
}

}  // namespace weft::comm
