#include "fabric/base/tensor_meta.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

std::string ToString(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

std::string ToString(const TensorMeta& meta) {
  return absl::StrCat(NameOf(meta.dtype), ToString(meta.shape));
}

Status CheckShape(DType dtype, const int64_t* dims, int rank) {
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  if (rank < 0 || rank > kMaxRank) {
    return InvalidArgument("rank ", rank, " is outside 0..", kMaxRank);
  }
  if (dtype == DType::kInvalid) return InvalidArgument("invalid dtype");
  int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  for (int i = 0; i < rank; ++i) {
    if (dims[i] < 0) return InvalidArgument("dimension ", i, " is negative: ", dims[i]);
    if (dims[i] == 0) continue;  // an empty tensor's other dimensions must be sane all the same
    if (__builtin_mul_overflow(bytes, dims[i], &bytes) || bytes > kMaxBytes) {
      return InvalidArgument("tensor [", absl::StrJoin(dims, dims + rank, ", "), "] exceeds ",
                             kMaxBytes, " bytes");
    }
  }
  return absl::OkStatus();
}

DType DTypeFromName(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype != DType::kInvalid && name == row.name) return row.dtype;
  }
  return DType::kInvalid;
}

}  // namespace weft
