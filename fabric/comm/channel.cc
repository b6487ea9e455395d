#include "fabric/comm/channel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "fabric/base/error_detail.h"

namespace weft::comm {

Status PeerGone(int32_t peer, absl::string_view how) {
  ErrorDetail detail;
  detail.origin = "comm";
  detail.action = ErrorAction::kRebuildComm;
  detail.rank = peer;
  return WithDetail(Unavailable("rank ", peer, " is gone: ", how), detail);
}

AbortRecord ToRecord(const Status& cause, int32_t by) {
  AbortRecord record;
  record.code = static_cast<int32_t>(cause.ok() ? absl::StatusCode::kAborted : cause.code());
  record.by = by;
  if (const auto detail = GetErrorDetail(cause); detail.has_value()) record.rank = detail->rank;
  const absl::string_view text = cause.ok() ? "aborted without a cause" : cause.message();
  record.length = static_cast<uint32_t>(std::min(text.size(), sizeof(record.text)));
  std::memcpy(record.text, text.data(), record.length);
  return record;
}

Status FromRecord(const AbortRecord& record, int32_t reader) {
  absl::StatusCode code = absl::StatusCode::kAborted;
  if (record.code > 0 && record.code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated)) {
    code = static_cast<absl::StatusCode>(record.code);
  }
  std::string text(record.text, std::min<size_t>(record.length, sizeof(record.text)));
  if (record.by != reader) absl::StrAppend(&text, " (told by rank ", record.by, ")");
  ErrorDetail detail;
  detail.origin = "comm";
  detail.action = ErrorAction::kRebuildComm;
  detail.rank = record.rank;
  return WithDetail(Status(code, text), detail);
}

}  // namespace weft::comm
