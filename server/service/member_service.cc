#include "server/service/member_service.h"

#include <atomic>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"

#include "fabric/wire/grpc_status.h"
#include "proto/member_api.grpc.pb.h"
#include "server/coordinator.h"
#include "server/service/work_pool.h"

namespace weft::service {
namespace {

// One worker's stream. Messages are handled in the order in which they come; commands queue without
// bound, but a worker takes few and each is small beside the plan it carries.
class WorkerStream final : public grpc::ServerBidiReactor<v1::MemberMessage, v1::MemberCommand>,
                           public state::CommandSink {
 public:
  // Deletes itself when gRPC and every queued task are done with it.
  static WorkerStream* Make(Coordinator* coordinator, WorkPool* pool, int64_t connection) {
    std::shared_ptr<WorkerStream> self(new WorkerStream(coordinator, pool, connection));
    self->self_ = self;
    self->StartRead(&self->message_);
    return self.get();
  }

  // Called under the coordinator's lock until Disconnect has returned.
  void Send(const v1::MemberCommand& command) override {
    {
      absl::MutexLock lock(&outbox_mu_);
      outbox_.push_back(command);
    }
    Poke();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (!registered_) {
      if (!message_.has_register_()) {
        return End(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                "the first message must be the registration"));
      }
      const Status status = coordinator_->Register(connection_, message_.register_(), this);
      if (!status.ok()) return End(wire::ToGrpc(status));
      registered_ = true;
    } else {
      coordinator_->Handle(connection_, message_);
    }
    message_.Clear();
    StartRead(&message_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) broken_ = true;
    writing_ = false;
    Poke();
  }
  void OnCancel() override {
    broken_ = true;
    Poke();
  }
  void OnDone() override {
    coordinator_->Disconnect(connection_);
    self_.reset();
  }

 private:
  WorkerStream(Coordinator* coordinator, WorkPool* pool, int64_t connection)
      : coordinator_(coordinator), pool_(pool), connection_(connection) {}

  void End(const grpc::Status& status) {
    coordinator_->Disconnect(connection_);
    {
      absl::MutexLock lock(&outbox_mu_);
      end_ = status;
      ending_ = true;
    }
    Poke();
  }

  void Poke() {
    pool_->Run([self = self_] { self->Pump(); });
  }

  void Pump() {
    absl::MutexLock lock(&pump_mu_);
    if (finished_ || writing_) return;
    absl::MutexLock outbox_lock(&outbox_mu_);
    // A broken stream's read ends too, and that ends the call.
    if (ending_) {
      finished_ = true;
      Finish(end_);
      return;
    }
    if (outbox_.empty() || broken_) return;
    sent_ = std::move(outbox_.front());
    outbox_.pop_front();
    writing_ = true;
    StartWrite(&sent_);
  }

  Coordinator* const coordinator_;
  WorkPool* const pool_;
  const int64_t connection_;
  std::shared_ptr<WorkerStream> self_;
  v1::MemberMessage message_;
  bool registered_ = false;  // only OnReadDone reads and writes it
  std::atomic<bool> writing_{false};
  std::atomic<bool> broken_{false};
  absl::Mutex pump_mu_;
  v1::MemberCommand sent_;
  bool finished_ ABSL_GUARDED_BY(pump_mu_) = false;
  absl::Mutex outbox_mu_;
  std::deque<v1::MemberCommand> outbox_ ABSL_GUARDED_BY(outbox_mu_);
  bool ending_ ABSL_GUARDED_BY(outbox_mu_) = false;
  grpc::Status end_ ABSL_GUARDED_BY(outbox_mu_);
};

class MemberServiceHandlers final : public v1::MemberService::CallbackService {
 public:
  MemberServiceHandlers(Coordinator* coordinator, WorkPool* pool)
      : coordinator_(coordinator), pool_(pool) {}

  grpc::ServerBidiReactor<v1::MemberMessage, v1::MemberCommand>* Connect(
      grpc::CallbackServerContext*) override {
    return WorkerStream::Make(coordinator_, pool_, next_connection_++);
  }

  // Answered on gRPC's own thread: it must not queue behind anything.
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override {
    response->set_known(coordinator_->Heartbeat(request->worker(), request->incarnation()));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Coordinator* const coordinator_;
  WorkPool* const pool_;
  std::atomic<int64_t> next_connection_{1};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMemberService(Coordinator* coordinator, WorkPool* pool) {
  return std::make_unique<MemberServiceHandlers>(coordinator, pool);
}

}  // namespace weft::service
