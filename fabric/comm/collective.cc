#include "fabric/comm/collective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::comm {

Chunk ChunkOf(int64_t count, int32_t ranks, int32_t rank) {
  const int64_t width = (count + ranks - 1) / ranks;
  const int64_t begin = std::min(count, width * rank);
  return {begin, std::min(count, begin + width) - begin};
}

const char* NameOf(Kind kind) {
  for (const KindRow& row : kKinds) {
    if (row.kind == kind) return row.name;
  }
  return "unknown";
}

std::string ToString(const CollectiveCall& call) {
  std::string text = NameOf(call.kind);
  if (call.kind != Kind::kBarrier) {
    absl::StrAppend(&text, " ", NameOf(call.dtype), "[", call.count, "]");
  }
  switch (call.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
      absl::StrAppend(&text, call.order == Order::kOrdered ? " ordered" : " ring");
      if (!call.partials.empty()) absl::StrAppend(&text, " lanes=", call.lanes);
      break;
    case Kind::kBroadcast:
      absl::StrAppend(&text, " root=", call.peer);
      break;
    case Kind::kSend:
    case Kind::kRecv:
      absl::StrAppend(&text, " peer=", call.peer);
      break;
    default:
      break;
  }
  if (call.label != nullptr && call.label[0] != '\0') {
    absl::StrAppend(&text, " '", call.label, "'");
  }
  return text;
}

}  // namespace weft::comm
