#include "fabric/wire/convert_types.h"

#include <iterator>

namespace weft::wire {
namespace {

static_assert(static_cast<int>(DType::kF32) == v1::DATA_TYPE_F32);
static_assert(static_cast<int>(DType::kF64) == v1::DATA_TYPE_F64);
static_assert(static_cast<int>(DType::kBF16) == v1::DATA_TYPE_BF16);
static_assert(static_cast<int>(DType::kI32) == v1::DATA_TYPE_I32);
static_assert(static_cast<int>(DType::kI64) == v1::DATA_TYPE_I64);
static_assert(static_cast<int>(DType::kU8) == v1::DATA_TYPE_U8);

}  // namespace

v1::TensorMeta ToProto(const TensorMeta& meta) {
  v1::TensorMeta proto;
  proto.set_dtype(static_cast<v1::DataType>(meta.dtype));
  for (const int64_t d : meta.shape) proto.add_dims(d);
  return proto;
}

StatusOr<Shape> ShapeFromProto(DType dtype, const google::protobuf::RepeatedField<int64_t>& dims) {
  RETURN_IF_ERROR(CheckShape(dtype, dims.data(), dims.size()));
  return Shape(dims.begin(), dims.end());
}

StatusOr<TensorMeta> FromProto(const v1::TensorMeta& proto) {
  const int number = proto.dtype();
  if (number <= 0 || number >= static_cast<int>(std::size(kDTypes))) {
    return InvalidArgument("there is no dtype ", number);
  }
  const DType dtype = static_cast<DType>(number);
  ASSIGN_OR_RETURN(const Shape shape, ShapeFromProto(dtype, proto.dims()));
  return TensorMeta{dtype, shape};
}

v1::LaneRange ToProto(LaneRange range) {
  v1::LaneRange proto;
  proto.set_begin(range.begin);
  proto.set_end(range.end);
  return proto;
}

LaneRange FromProto(const v1::LaneRange& proto) { return {proto.begin(), proto.end()}; }

}  // namespace weft::wire
