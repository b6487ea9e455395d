#include "fabric/wire/grpc_status.h"

#include <string>

#include "fabric/wire/status_proto.h"

namespace weft::wire {
namespace {

constexpr size_t kMaxMessageBytes = 4096;

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    message.resize(kMaxMessageBytes);
    message += " [cut]";
  }
  std::string details;
  if (const auto detail = GetErrorDetail(status)) details = ToProto(*detail).SerializeAsString();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details);
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  v1::StatusProto p;
  p.set_code(status.error_code());
  p.set_message(status.error_message());
  // Details of another server may be of another kind.
  v1::ErrorDetail detail;
  if (!status.error_details().empty() && detail.ParseFromString(status.error_details())) {
    *p.mutable_detail() = detail;
  }
  return FromProto(p);
}

}  // namespace weft::wire
