#include "fabric/base/error_detail.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

constexpr char kPayloadUrl[] = "weft.dev/error_detail";
constexpr size_t kFields = 8;

}  // namespace

// The payload never leaves the process in this form, so a line of escaped fields is enough.
Status WithDetail(Status status, const ErrorDetail& d) {
  if (status.ok()) return status;
  const std::vector<std::string> fields = {d.origin,
                                           absl::StrCat(static_cast<int>(d.action)),
                                           d.worker,
                                           d.job,
                                           absl::StrCat(d.generation),
                                           absl::StrCat(d.rank),
                                           absl::StrCat(d.step),
                                           d.op};
  status.SetPayload(kPayloadUrl,
                    absl::Cord(absl::StrJoin(fields, "\n", [](std::string* out, const auto& f) {
                      absl::StrAppend(out, absl::CEscape(f));
                    })));
  return status;
}

std::optional<ErrorDetail> GetErrorDetail(const Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  std::vector<std::string> fields = absl::StrSplit(std::string(*payload), '\n');
  if (fields.size() != kFields) return std::nullopt;
  for (std::string& field : fields) {
    std::string raw;
    if (!absl::CUnescape(field, &raw)) return std::nullopt;
    field = raw;
  }
  ErrorDetail d;
  int action = 0;
  d.origin = fields[0];
  if (!absl::SimpleAtoi(fields[1], &action)) return std::nullopt;
  d.action = static_cast<ErrorAction>(action);
  d.worker = fields[2];
  d.job = fields[3];
  if (!absl::SimpleAtoi(fields[4], &d.generation)) return std::nullopt;
  if (!absl::SimpleAtoi(fields[5], &d.rank)) return std::nullopt;
  if (!absl::SimpleAtoi(fields[6], &d.step)) return std::nullopt;
  d.op = fields[7];
  return d;
}

}  // namespace weft
