#include "worker/core/ops/infer.h"

#include <string>
#include <vector>

namespace weft {

Status CheckFloats(const Metas& in) {
  for (const TensorMeta& meta : in) {
    if (!IsFloat(meta.dtype)) {
      return InvalidArgument("computes in f32, f64 or bf16, got ", NameOf(meta.dtype),
                             "; cast first");
    }
    if (meta.dtype != in[0].dtype) {
      return InvalidArgument("operands are ", NameOf(in[0].dtype), " and ", NameOf(meta.dtype),
                             "; cast one of them");
    }
  }
  return absl::OkStatus();
}

Status CheckNarrow(const TensorMeta& meta, const char* name) {
  if (meta.dtype == DType::kF32 || meta.dtype == DType::kBF16) return absl::OkStatus();
  return InvalidArgument("'", name, "' is ", NameOf(meta.dtype), ", wants f32 or bf16; cast first");
}

Status CheckF32(const TensorMeta& meta, const char* name) {
  if (meta.dtype == DType::kF32) return absl::OkStatus();
  return InvalidArgument("'", name, "' is ", NameOf(meta.dtype), ", wants f32; cast first");
}

StatusOr<int> CheckAxis(const Shape& shape, int64_t axis) {
  if (axis >= -shape.rank() && axis < shape.rank()) {
    return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
  }
  return InvalidArgument("axis ", axis, " is not one of the ", shape.rank(), " dimensions of ",
                         ToString(shape));
}

StatusOr<std::vector<bool>> CheckAxes(const Shape& shape, const std::vector<int64_t>& axes) {
  std::vector<bool> chosen(shape.rank(), axes.empty());
  for (int64_t axis : axes) {
    ASSIGN_OR_RETURN(const int a, CheckAxis(shape, axis));
    if (chosen[a]) return InvalidArgument("axis ", axis, " is named twice");
    chosen[a] = true;
  }
  return chosen;
}

StatusOr<Shape> CheckedShape(DType dtype, const std::vector<int64_t>& dims) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    return InvalidArgument("shape has ", dims.size(), " dimensions, at most ", kMaxRank);
  }
  RETURN_IF_ERROR(CheckShape(dtype, dims.data(), static_cast<int>(dims.size())));
  return Shape(dims.begin(), dims.end());
}

StatusOr<DType> CheckedDType(const std::string& name) {
  if (name.empty()) return DType::kF32;
  const DType dtype = DTypeFromName(name);
  if (dtype == DType::kInvalid) return InvalidArgument("no dtype '", name, "'");
  return dtype;
}

}  // namespace weft
