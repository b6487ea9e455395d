// Both services, the token and the listener, over real sockets.
#include <filesystem>

#include "absl/synchronization/notification.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/service_type.h"
#include <gtest/gtest.h>

#include "fabric/wire/channel.h"
#include "proto/client_api.grpc.pb.h"
#include "proto/member_api.grpc.pb.h"
#include "server/coordinator.h"
#include "server/service/client_service.h"
#include "server/service/listener.h"
#include "server/service/member_service.h"
#include "server/service/work_pool.h"
#include "tests/support/status_matchers.h"

namespace weft::service {
namespace {

using ::weft::testing::IsStatus;

constexpr char kToken[] = "0123456789abcdef";

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    folder_ = ::testing::TempDir() + "/service_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    CoordinatorOptions options;
    options.database = folder_ + "/weft.db";
    options.planning.admit = [](const v1::JobSpec& spec) -> StatusOr<v1::JobSpec> { return spec; };
    options.planning.plan = [](const PlanQuestion&) -> StatusOr<v1::Plan> { return v1::Plan(); };
    auto opened = Coordinator::Open(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    coordinator_->Start();
    v1::GetVersionResponse version;
    version.set_version("9");
    jobs_ = MakeJobService(coordinator_.get(), &pool_, version);
    members_ = MakeMemberService(coordinator_.get(), &pool_);
    auto listener = Listener::Open("127.0.0.1:0", kToken, {jobs_.get(), members_.get()});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  ~ServiceTest() override {
    listener_->Shutdown(absl::ZeroDuration());
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<grpc::Channel> Dial(const std::string& token = kToken) {
    return wire::MakeChannel(listener_->address(), token);
  }
  static void Limit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  std::string Submit(v1::JobService::Stub& stub) {
    grpc::ClientContext context;
    Limit(context);
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("j");
    v1::SubmitJobResponse response;
    const grpc::Status status = stub.SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }

  std::string folder_;
  std::unique_ptr<Coordinator> coordinator_;
  WorkPool pool_{4, 100};
  std::unique_ptr<grpc::Service> jobs_, members_;
  std::unique_ptr<Listener> listener_;
};

// Calls any method with an empty message.
grpc::Status CallByName(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice empty;
  grpc::ByteBuffer request(&empty, 1), response;
  grpc::Status result;
  absl::Notification done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status status) {
                   result = std::move(status);
                   done.Notify();
                 });
  done.WaitForNotification();
  return result;
}

std::vector<std::string> AllMethods() {
  std::vector<std::string> methods = {"/grpc.health.v1.Health/Check", "/no.such.Service/Method"};
  for (const auto* file :
       {v1::SubmitJobRequest::descriptor()->file(), v1::MemberMessage::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back("/" + file->service(s)->full_name() + "/" +
                          file->service(s)->method(m)->name());
      }
    }
  }
  return methods;
}

TEST_F(ServiceTest, EveryMethod_WithoutTheToken_IsUnauthenticated) {
  const auto wrong = Dial("0123456789abcdee");
  const auto none = grpc::CreateChannel(listener_->address(), grpc::InsecureChannelCredentials());
  const auto methods = AllMethods();
  ASSERT_EQ(methods.size(), 13u);
  for (const std::string& method : methods) {
    SCOPED_TRACE(method);
    EXPECT_EQ(CallByName(wrong, method).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(CallByName(none, method).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
}

TEST_F(ServiceTest, Health_WithTheToken_Serves) {
  EXPECT_TRUE(CallByName(Dial(), "/grpc.health.v1.Health/Check").ok());
}

TEST_F(ServiceTest, Calls_RoundTrip) {
  const auto stub = v1::JobService::NewStub(Dial());
  const std::string id = Submit(*stub);
  {
    grpc::ClientContext context;
    Limit(context);
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    ASSERT_TRUE(stub->GetJob(&context, request, &response).ok());
    EXPECT_EQ(response.job().id(), id);
  }
  {
    grpc::ClientContext context;
    Limit(context);
    v1::GetJobRequest request;
    request.set_id("nobody");
    v1::GetJobResponse response;
    EXPECT_EQ(stub->GetJob(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  grpc::ClientContext context;
  Limit(context);
  v1::GetVersionResponse version;
  ASSERT_TRUE(stub->GetVersion(&context, {}, &version).ok());
  EXPECT_EQ(version.version(), "9");
}

TEST_F(ServiceTest, Watch_EndsAfterTheTerminalEvent) {
  const auto stub = v1::JobService::NewStub(Dial());
  const std::string id = Submit(*stub);
  grpc::ClientContext context;
  Limit(context);
  v1::WatchJobRequest request;
  request.set_id(id);
  const auto events = stub->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(events->Read(&response));
  EXPECT_EQ(response.event().state().state(), v1::JOB_STATE_QUEUED);
  {
    grpc::ClientContext cancel_context;
    Limit(cancel_context);
    v1::CancelJobRequest cancel;
    cancel.set_id(id);
    v1::CancelJobResponse answer;
    ASSERT_TRUE(stub->CancelJob(&cancel_context, cancel, &answer).ok());
  }
  v1::JobState last = v1::JOB_STATE_UNSPECIFIED;
  while (events->Read(&response)) {
    if (response.event().has_state()) last = response.event().state().state();
  }
  EXPECT_EQ(last, v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(events->Finish().ok());
}

TEST_F(ServiceTest, Watchers_ManyIdle_DoNotStarveCalls) {
  const auto stub = v1::JobService::NewStub(Dial());
  const std::string id = Submit(*stub);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchLogsResponse>>> streams;
  v1::WatchLogsRequest request;
  request.set_id(id);
  request.set_rank(-1);
  request.set_follow(true);
  for (int i = 0; i < 100; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    Limit(*contexts.back());
    streams.push_back(stub->WatchLogs(contexts.back().get(), request));
  }
  EXPECT_NE(Submit(*stub), id);
  for (auto& context : contexts) context->TryCancel();
  for (auto& stream : streams) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST_F(ServiceTest, Watch_UnknownJob_IsNotFound) {
  const auto stub = v1::JobService::NewStub(Dial());
  grpc::ClientContext context;
  Limit(context);
  v1::WatchJobRequest request;
  request.set_id("nobody");
  const auto events = stub->WatchJob(&context, request);
  v1::WatchJobResponse response;
  EXPECT_FALSE(events->Read(&response));
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, Worker_RegistersGetsAStartAndBeats) {
  const auto stub = v1::MemberService::NewStub(Dial());
  const auto jobs = v1::JobService::NewStub(Dial());
  grpc::ClientContext context;
  Limit(context);
  const auto stream = stub->Connect(&context);
  v1::MemberMessage hello;
  hello.mutable_register_()->set_worker("w");
  hello.mutable_register_()->set_incarnation(3);
  hello.mutable_register_()->set_slots(1);
  ASSERT_TRUE(stream->Write(hello));
  v1::MemberCommand command;
  ASSERT_TRUE(stream->Read(&command));
  EXPECT_TRUE(command.has_registered());
  for (const int64_t incarnation : {3, 4}) {
    grpc::ClientContext beat_context;
    Limit(beat_context);
    v1::HeartbeatRequest beat;
    beat.set_worker("w");
    beat.set_incarnation(incarnation);
    v1::HeartbeatResponse answer;
    ASSERT_TRUE(stub->Heartbeat(&beat_context, beat, &answer).ok());
    EXPECT_EQ(answer.known(), incarnation == 3);
  }
  const std::string id = Submit(*jobs);
  ASSERT_TRUE(stream->Read(&command));
  EXPECT_EQ(command.start().spec().member().job(), id);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServiceTest, Worker_FirstMessageIsNoRegistration_IsRefused) {
  const auto stub = v1::MemberService::NewStub(Dial());
  grpc::ClientContext context;
  Limit(context);
  const auto stream = stub->Connect(&context);
  v1::MemberMessage log;
  log.mutable_log()->set_line("x");
  ASSERT_TRUE(stream->Write(log));
  v1::MemberCommand command;
  EXPECT_FALSE(stream->Read(&command));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, Shutdown_EndsOpenStreams) {
  const auto stub = v1::JobService::NewStub(Dial());
  const std::string id = Submit(*stub);
  grpc::ClientContext context;
  Limit(context);
  v1::WatchJobRequest request;
  request.set_id(id);
  const auto events = stub->WatchJob(&context, request);
  v1::WatchJobResponse response;
  ASSERT_TRUE(events->Read(&response));
  listener_->Shutdown(absl::ZeroDuration());
  while (events->Read(&response)) {
  }
  EXPECT_FALSE(events->Finish().ok());
}

TEST(Listener, Table_AddressesThatAreRefused) {
  struct Case {
    const char* address;
    absl::StatusCode code;
    const char* says;
  };
  const Case cases[] = {
      {"0.0.0.0:0", absl::StatusCode::kFailedPrecondition, "TLS does not exist yet"},
      {"10.0.0.1:70", absl::StatusCode::kFailedPrecondition, "is not loopback"},
      {"[::]:0", absl::StatusCode::kFailedPrecondition, "is not loopback"},
      {"127.evil.example:1", absl::StatusCode::kFailedPrecondition, "is not loopback"},
      {"127.0.0.1", absl::StatusCode::kInvalidArgument, "is not host:port"},
      {"127.0.0.1:99999", absl::StatusCode::kInvalidArgument, "is not host:port"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Listener::Open(c.address, kToken, {}), IsStatus(c.code, c.says)) << c.address;
  }
}

TEST(WorkPool, TryRun_FullQueue_IsRefused) {
  absl::Notification started, go;
  WorkPool pool(1, 1);
  pool.Run([&] {
    started.Notify();
    go.WaitForNotification();
  });
  started.WaitForNotification();
  EXPECT_TRUE(pool.TryRun([] {}));
  EXPECT_FALSE(pool.TryRun([] {}));
  go.Notify();
}

}  // namespace
}  // namespace weft::service
