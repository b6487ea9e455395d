#include "worker/core/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace weft {
namespace {

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::kBF16;
}

// Calls visit(position in row-major order, offset in elements) for each element of a window.
template <typename Visit>
void ForEachElement(const Shape& shape, const Strides& strides, Visit visit) {
  const int64_t count = shape.elements();
  Shape at = shape;
  for (int i = 0; i < shape.rank(); ++i) at.set_dim(i, 0);
  int64_t offset = 0;
  for (int64_t position = 0; position < count; ++position) {
    visit(position, offset);
    for (int i = shape.rank() - 1; i >= 0; --i) {
      offset += strides.dim(i);
      at.set_dim(i, at.dim(i) + 1);
      if (at.dim(i) < shape.dim(i)) break;
      offset -= strides.dim(i) * shape.dim(i);
      at.set_dim(i, 0);
    }
  }
}

Status CheckHost(const Tensor& tensor) {
  if (!tensor.valid()) return InvalidArgument("the tensor is invalid: the op that made it failed");
  if (tensor.device().kind == DeviceKind::kCpu) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("elements on ", NameOf(tensor.device().kind), " cannot be read from here"));
}

}  // namespace

StatusOr<Tensor> Tensor::Window(const TensorMeta& meta, int64_t offset,
                                const Strides& strides) const {
  int64_t first = this->offset() + offset, last = first;
  bool empty = false;
  for (int i = 0; i < meta.shape.rank(); ++i) {
    empty |= meta.shape.dim(i) == 0;
    const int64_t span = (meta.shape.dim(i) - 1) * strides.dim(i);
    (span < 0 ? first : last) += span;
  }
  const int64_t held = static_cast<int64_t>(storage()->buffer().bytes() / SizeOf(meta.dtype));
  if (!empty && (first < 0 || last >= held || strides.rank() != meta.shape.rank())) {
    return Internal("a view ", ToString(meta), " with strides ", ToString(strides),
                    " covers elements ", first, " to ", last, " of a storage of ", held);
  }
  return Tensor(std::make_shared<TensorRep>(meta, storage(), this->offset() + offset, strides));
}

Tensor Tensor::Detached() const {
  return Tensor(std::make_shared<TensorRep>(meta(), storage(), offset(), strides()));
}

StatusOr<Tensor> EmptyTensor(CachingAllocator& allocator, const TensorMeta& meta,
                             absl::string_view tag) {
  ASSIGN_OR_RETURN(Buffer buffer, allocator.Allocate(static_cast<size_t>(meta.bytes()), tag));
  return Tensor(std::make_shared<TensorRep>(meta, std::make_shared<Storage>(std::move(buffer)), 0,
                                            ContiguousStrides(meta.shape)));
}

template <typename T>
StatusOr<Tensor> TensorFrom(CachingAllocator& allocator, const Shape& shape,
                            const std::vector<T>& elements) {
  if (shape.elements() != static_cast<int64_t>(elements.size())) {
    return InvalidArgument("shape ", ToString(shape), " has ", shape.elements(), " elements, got ",
                           elements.size());
  }
  ASSIGN_OR_RETURN(Tensor tensor, EmptyTensor(allocator, {DTypeOf<T>(), shape}));
  RETURN_IF_ERROR(CheckHost(tensor));
  if (!elements.empty()) std::memcpy(tensor.data(), elements.data(), elements.size() * sizeof(T));
  return tensor;
}

template <typename T>
StatusOr<std::vector<T>> ToVector(const Tensor& tensor) {
  RETURN_IF_ERROR(CheckHost(tensor));
  if (tensor.dtype() != DTypeOf<T>()) {
    return InvalidArgument("asked for ", NameOf(DTypeOf<T>()), " elements of ",
                           ToString(tensor.meta()));
  }
  std::vector<T> elements(static_cast<size_t>(tensor.meta().elements()));
  const T* data = static_cast<const T*>(tensor.data());
  ForEachElement(tensor.shape(), tensor.strides(),
                 [&](int64_t position, int64_t offset) { elements[position] = data[offset]; });
  return elements;
}

StatusOr<double> ToScalar(const Tensor& tensor) {
  RETURN_IF_ERROR(CheckHost(tensor));
  if (tensor.meta().elements() != 1) {
    return InvalidArgument("asked for the only element of ", ToString(tensor.meta()));
  }
  const ArrayRef ref = tensor.ref();
  switch (ref.dtype) {
    case DType::kF32:
      return *ref.as<float>();
    case DType::kF64:
      return *ref.as<double>();
    case DType::kI32:
      return *ref.as<int32_t>();
    case DType::kI64:
      return static_cast<double>(*ref.as<int64_t>());
    case DType::kU8:
      return *ref.as<uint8_t>();
    default:
      return InvalidArgument(ToString(tensor.meta()), " cannot be read as a number; cast it first");
  }
}

#define WEFT_INSTANTIATE(T)                                                       \
  template StatusOr<Tensor> TensorFrom(CachingAllocator& allocator, const Shape&, \
                                       const std::vector<T>&);                    \
  template StatusOr<std::vector<T>> ToVector(const Tensor&);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
WEFT_INSTANTIATE(int32_t)
WEFT_INSTANTIATE(int64_t)
WEFT_INSTANTIATE(uint8_t)
WEFT_INSTANTIATE(uint16_t)
#undef WEFT_INSTANTIATE

}  // namespace weft
