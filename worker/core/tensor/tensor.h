// Tensor: a strided window on shared storage. A cheap handle, as Value is, and the two convert into
// each other without a copy: the representation behind a Tensor is a ValueRep. Copies of a handle
// are the same tensor; views share storage but are tensors of their own.
//
// Safe to read from several threads; setting a tensor's tape link is not (autograd does it when the
// tensor is made, or the user when a leaf is marked).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/base/array_ref.h"
#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"
#include "fabric/opset/emitter.h"
#include "worker/core/alloc/caching_allocator.h"
#include "worker/core/tensor/storage.h"

namespace weft {

class GradNode;  // worker/core/autograd

// Which result of which recorded op a tensor is. Empty: the tape does not follow the tensor.
struct TapeLink {
  std::shared_ptr<GradNode> node;
  int output = 0;
};

class TensorRep final : public ValueRep {
 public:
  TensorRep(TensorMeta meta, std::shared_ptr<Storage> storage, int64_t offset,
            const Strides& strides)
      : ValueRep(std::move(meta)),
        storage_(std::move(storage)),
        offset_(offset),
        strides_(strides),
        version_(storage_->version()) {}

  const std::shared_ptr<Storage>& storage() const { return storage_; }
  int64_t offset() const { return offset_; }
  const Strides& strides() const { return strides_; }
  // The storage's version when this handle was made.
  uint64_t version() const { return version_; }
  TapeLink& link() const { return link_; }

 private:
  std::shared_ptr<Storage> storage_;
  int64_t offset_;
  Strides strides_;
  uint64_t version_;
  mutable TapeLink link_;
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<const TensorRep> rep) : rep_(std::move(rep)) {}
  // Invalid when `value` is invalid or not a tensor (a graph builder's, say).
  static Tensor From(const Value& value) {
    return Tensor(std::dynamic_pointer_cast<const TensorRep>(value.rep()));
  }
  Value value() const { return Value(rep_); }
  operator Value() const { return value(); }  // NOLINT: so that op wrappers take tensors

  bool valid() const { return rep_ != nullptr; }
  const TensorMeta& meta() const { return rep_->meta(); }
  const Shape& shape() const { return meta().shape; }
  DType dtype() const { return meta().dtype; }
  const Strides& strides() const { return rep_->strides(); }
  int64_t offset() const { return rep_->offset(); }  // elements into the storage
  DeviceId device() const { return rep_->storage()->buffer().device(); }
  bool contiguous() const { return IsContiguous(shape(), strides()); }
  const std::shared_ptr<Storage>& storage() const { return rep_->storage(); }
  const std::shared_ptr<const TensorRep>& rep() const { return rep_; }
  // Address of element 0.
  void* data() const {
    return static_cast<char*>(storage()->buffer().data()) +
           offset() * static_cast<int64_t>(SizeOf(dtype()));
  }
  ArrayRef ref() const { return {data(), dtype(), shape(), strides()}; }

  // Another window on the same storage; `offset` and `strides` in elements, from this tensor's
  // element 0. Internal when the window leaves the storage. The tape does not know of it: ops make
  // views that it does.
  StatusOr<Tensor> Window(const TensorMeta& meta, int64_t offset, const Strides& strides) const;
  // The same window as a new tensor without a tape link.
  Tensor Detached() const;

 private:
  std::shared_ptr<const TensorRep> rep_;
};

// A contiguous tensor over fresh bytes, which hold anything. `tag` names the holder in the
// allocator's statistics.
StatusOr<Tensor> EmptyTensor(CachingAllocator& allocator, const TensorMeta& meta,
                             absl::string_view tag = "tensor");

// T is float, double, int32_t, int64_t, uint8_t or uint16_t (the bits of a bf16). Both are for host
// memory: Unimplemented elsewhere. InvalidArgument when count or dtype does not fit.
template <typename T>
StatusOr<Tensor> TensorFrom(CachingAllocator& allocator, const Shape& shape,
                            const std::vector<T>& elements);
template <typename T>
StatusOr<std::vector<T>> ToVector(const Tensor& tensor);
template <typename T>
StatusOr<std::vector<T>> ToVector(const Value& value) {
  return ToVector<T>(Tensor::From(value));
}

// The only element of `tensor`, of any dtype but bf16, as a double. What control flow reads.
StatusOr<double> ToScalar(const Tensor& tensor);

}  // namespace weft
