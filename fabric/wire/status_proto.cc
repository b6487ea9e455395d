#include "fabric/wire/status_proto.h"

namespace weft::wire {

v1::ErrorDetail ToProto(const ErrorDetail& d) {
  v1::ErrorDetail p;
  p.set_origin(d.origin);
  p.set_action(static_cast<v1::ErrorAction>(d.action));
  p.set_worker(d.worker);
  p.set_job(d.job);
  p.set_generation(d.generation);
  p.set_rank(d.rank);
  p.set_step(d.step);
  p.set_op(d.op);
  return p;
}

ErrorDetail FromProto(const v1::ErrorDetail& p) {
  ErrorDetail d;
  d.origin = p.origin();
  if (v1::ErrorAction_IsValid(p.action())) d.action = static_cast<ErrorAction>(p.action());
  d.worker = p.worker();
  d.job = p.job();
  d.generation = p.generation();
  d.rank = p.rank();
  d.step = p.step();
  d.op = p.op();
  return d;
}

v1::StatusProto ToProto(const Status& status) {
  v1::StatusProto p;
  p.set_code(static_cast<int>(status.code()));
  p.set_message(std::string(status.message()));
  if (const auto detail = GetErrorDetail(status)) *p.mutable_detail() = ToProto(*detail);
  return p;
}

Status FromProto(const v1::StatusProto& p) {
  if (p.code() == 0) return absl::OkStatus();
  const bool canonical = p.code() >= 1 && p.code() <= 16;
  Status status(canonical ? static_cast<absl::StatusCode>(p.code()) : absl::StatusCode::kUnknown,
                p.message());
  return p.has_detail() ? WithDetail(status, FromProto(p.detail())) : status;
}

}  // namespace weft::wire
