#include "fabric/wire/grpc_status.h"

#include <gtest/gtest.h>

#include "fabric/base/error_detail.h"
#include "fabric/wire/status_proto.h"

namespace weft::wire {
namespace {

Status Detailed() {
  return WithDetail(Unavailable("peer rank 2 is gone"), {.origin = "comm",
                                                         .action = ErrorAction::kRebuildComm,
                                                         .worker = "node-1",
                                                         .job = "reverse-abc",
                                                         .generation = 3,
                                                         .rank = 2,
                                                         .step = 41,
                                                         .op = "all_reduce"});
}

void ExpectDetailed(const Status& got) {
  EXPECT_EQ(got.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(got.message()), "peer rank 2 is gone");
  const auto detail = GetErrorDetail(got);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->origin, "comm");
  EXPECT_EQ(detail->action, ErrorAction::kRebuildComm);
  EXPECT_EQ(detail->worker, "node-1");
  EXPECT_EQ(detail->job, "reverse-abc");
  EXPECT_EQ(detail->generation, 3);
  EXPECT_EQ(detail->rank, 2);
  EXPECT_EQ(detail->step, 41);
  EXPECT_EQ(detail->op, "all_reduce");
}

TEST(GrpcStatus, WithDetail_RoundTrips) { ExpectDetailed(FromGrpc(ToGrpc(Detailed()))); }

TEST(StatusProto, WithDetail_RoundTrips) { ExpectDetailed(FromProto(ToProto(Detailed()))); }

TEST(GrpcStatus, WithoutDetail_StaysWithout) {
  const Status got = FromGrpc(ToGrpc(InvalidArgument("batch 0")));
  EXPECT_EQ(got, InvalidArgument("batch 0"));
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(GrpcStatus, LongMessage_IsCut) {
  EXPECT_LT(ToGrpc(Internal(std::string(100000, 'x'))).error_message().size(), 4200u);
}

TEST(StatusProto, HostileNumbers_BecomeUnknown) {
  v1::StatusProto p;
  p.set_code(-7);
  p.mutable_detail()->set_action(static_cast<v1::ErrorAction>(99));
  const Status got = FromProto(p);
  EXPECT_EQ(got.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(GetErrorDetail(got)->action, ErrorAction::kUnspecified);
}

}  // namespace
}  // namespace weft::wire
