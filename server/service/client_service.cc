#include "server/service/client_service.h"

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"

#include "fabric/wire/grpc_status.h"
#include "proto/client_api.grpc.pb.h"
#include "server/coordinator.h"
#include "server/service/work_pool.h"

namespace weft::service {
namespace {

constexpr size_t kPage = 256;

// A stream of what a job yields. It reads pages as the client takes them, so a slow client costs
// one page.
template <typename Response>
class FollowReactor final : public grpc::ServerWriteReactor<Response> {
 public:
  struct Page {
    std::vector<Response> items;
    bool ended = false;
  };
  using Read = std::function<StatusOr<Page>()>;

  // Deletes itself when gRPC and every queued task are done with it.
  static FollowReactor* Make(Coordinator* coordinator, WorkPool* pool, const std::string& job,
                             Read read) {
    std::shared_ptr<FollowReactor> self(new FollowReactor(coordinator, pool, std::move(read)));
    self->self_ = self;
    // May not take the reactor's mutex: it runs under the coordinator's.
    self->subscription_ = coordinator->Subscribe(
        job, [weak = std::weak_ptr<FollowReactor>(self)] { Poke(weak.lock()); });
    Poke(self);
    return self.get();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) gone_ = true;
    writing_ = false;
    Poke(self_);
  }
  void OnCancel() override {
    gone_ = true;
    Poke(self_);
  }
  void OnDone() override {
    coordinator_->Unsubscribe(subscription_);
    self_.reset();
  }

 private:
  FollowReactor(Coordinator* coordinator, WorkPool* pool, Read read)
      : coordinator_(coordinator), pool_(pool), read_(std::move(read)) {}

  static void Poke(std::shared_ptr<FollowReactor> self) {
    if (self == nullptr) return;
    WorkPool* pool = self->pool_;
    pool->Run([self = std::move(self)] { self->Pump(); });
  }

  void Pump() {
    absl::MutexLock lock(&mu_);
    if (finished_ || writing_) return;
    if (gone_) return FinishLocked(grpc::Status::CANCELLED);
    if (page_.empty() && !ended_) {
      StatusOr<Page> page = read_();
      if (!page.ok()) return FinishLocked(wire::ToGrpc(page.status()));
      page_.assign(std::make_move_iterator(page->items.begin()),
                   std::make_move_iterator(page->items.end()));
      ended_ = page->ended;
    }
    if (page_.empty()) {
      if (ended_) FinishLocked(grpc::Status::OK);
      return;
    }
    sent_ = std::move(page_.front());
    page_.pop_front();
    writing_ = true;
    this->StartWrite(&sent_);
  }

  void FinishLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    finished_ = true;
    this->Finish(status);
  }

  Coordinator* const coordinator_;
  WorkPool* const pool_;
  std::shared_ptr<FollowReactor> self_;
  int64_t subscription_ = 0;
  std::atomic<bool> writing_{false};
  std::atomic<bool> gone_{false};
  absl::Mutex mu_;
  const Read read_;
  std::deque<Response> page_ ABSL_GUARDED_BY(mu_);
  Response sent_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

class JobServiceHandlers final : public v1::JobService::CallbackService {
 public:
  JobServiceHandlers(Coordinator* coordinator, WorkPool* pool, v1::GetVersionResponse version)
      : coordinator_(coordinator), pool_(pool), version_(std::move(version)) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      ASSIGN_OR_RETURN(*response->mutable_job(), coordinator_->Submit(*request));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* context,
                                    const v1::PlanJobRequest* request,
                                    v1::PlanJobResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      ASSIGN_OR_RETURN(*response->mutable_plan(), coordinator_->Plan(*request));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      ASSIGN_OR_RETURN(*response->mutable_job(), coordinator_->Get(request->id()));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      ASSIGN_OR_RETURN(*response, coordinator_->List(*request));
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext*, const v1::WatchJobRequest* request) override {
    const std::string id = request->id();
    auto read = [coordinator = coordinator_, id, after = request->after_sequence()]() mutable
        -> StatusOr<FollowReactor<v1::WatchJobResponse>::Page> {
      ASSIGN_OR_RETURN(auto events, coordinator->ReadEvents(id, after, kPage));
      FollowReactor<v1::WatchJobResponse>::Page page;
      page.ended = events.ended;
      for (v1::JobEvent& event : events.events) {
        after = event.sequence();
        *page.items.emplace_back().mutable_event() = std::move(event);
      }
      return page;
    };
    return FollowReactor<v1::WatchJobResponse>::Make(coordinator_, pool_, id, std::move(read));
  }

  grpc::ServerWriteReactor<v1::WatchLogsResponse>* WatchLogs(
      grpc::CallbackServerContext*, const v1::WatchLogsRequest* request) override {
    auto read =
        [coordinator = coordinator_, r = *request,
         after = int64_t{-1}]() mutable -> StatusOr<FollowReactor<v1::WatchLogsResponse>::Page> {
      if (after < 0) {
        ASSIGN_OR_RETURN(after, coordinator->FindLogTail(r.id(), r.rank(), r.tail()));
      }
      ASSIGN_OR_RETURN(auto lines, coordinator->ReadLogs(r.id(), r.rank(), after, kPage));
      FollowReactor<v1::WatchLogsResponse>::Page page;
      page.ended = lines.ended || (!r.follow() && lines.lines.size() < kPage);
      for (state::LogEntry& entry : lines.lines) {
        after = entry.number;
        v1::WatchLogsResponse& item = page.items.emplace_back();
        item.set_rank(entry.rank);
        item.set_generation(entry.generation);
        item.set_line(std::move(entry.line));
      }
      return page;
    };
    return FollowReactor<v1::WatchLogsResponse>::Make(coordinator_, pool_, request->id(),
                                                      std::move(read));
  }

  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      const v1::StopMode mode = request->save() ? v1::STOP_MODE_SAVE_AND_STOP : v1::STOP_MODE_STOP;
      ASSIGN_OR_RETURN(*response->mutable_job(), coordinator_->Cancel(request->id(), mode));
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest*,
                                        v1::ListWorkersResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      *response = coordinator_->ListWorkers();
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    return Answer(context, [=, this]() -> Status {
      *response = version_;
      return absl::OkStatus();
    });
  }

 private:
  // Foreign exceptions end here.
  static Status CallCaught(const std::function<Status()>& handle) {
    try {
      return handle();
    } catch (const std::exception& e) {
      return Internal("unexpected exception: ", e.what());
    }
  }

  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   std::function<Status()> handle) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool queued = pool_->TryRun([reactor, handle = std::move(handle)] {
      reactor->Finish(wire::ToGrpc(CallCaught(handle)));
    });
    if (!queued) {
      reactor->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                   "too many calls are waiting; try again later"));
    }
    return reactor;
  }

  Coordinator* const coordinator_;
  WorkPool* const pool_;
  const v1::GetVersionResponse version_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(Coordinator* coordinator, WorkPool* pool,
                                              v1::GetVersionResponse version) {
  return std::make_unique<JobServiceHandlers>(coordinator, pool, std::move(version));
}

}  // namespace weft::service
