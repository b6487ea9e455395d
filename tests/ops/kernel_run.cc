#include "tests/ops/kernel_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "worker/core/dispatch/kernel_table.h"

namespace weft::testing {
namespace {

constexpr int64_t kGuard = 256;
constexpr char kGuardByte = 0x5a;

bool AllGuard(const char* begin, int64_t count) {
  return std::all_of(begin, begin + count, [](char c) { return c == kGuardByte; });
}

double LoadElement(DType dtype, const char* p) {
  const auto as = [p](auto value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return as(float{});
    case DType::kF64:
      return as(double{});
    case DType::kBF16:
      return std::bit_cast<float>(uint32_t{as(uint16_t{})} << 16);
    case DType::kI32:
      return as(int32_t{});
    case DType::kI64:
      return static_cast<double>(as(int64_t{}));
    case DType::kU8:
      return as(uint8_t{});
    case DType::kInvalid:
      break;
  }
  return NAN;
}

void StoreElement(DType dtype, double x, char* p) {
  const auto put = [p](auto value) { std::memcpy(p, &value, sizeof value); };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(x));
    case DType::kF64:
      return put(x);
    case DType::kBF16:  // truncated: test data is exact
      return put(static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16));
    case DType::kI32:
      return put(static_cast<int32_t>(x));
    case DType::kI64:
      return put(static_cast<int64_t>(x));
    case DType::kU8:
      return put(static_cast<uint8_t>(x));
    case DType::kInvalid:
      break;
  }
}

int64_t OffsetOf(const Shape& shape, const Strides& strides, int64_t i) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += i % shape.dim(axis) * strides.dim(axis);
    i /= shape.dim(axis);
  }
  return offset;
}

// Scratch of exactly the size asked for, on 64 bytes, with a guard behind.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : bytes_(bytes), all_(bytes + kGuard + 64, kGuardByte) {
    std::fill_n(data(), bytes, '\xff');
  }
  char* data() {
    const auto address = reinterpret_cast<uintptr_t>(all_.data());
    return all_.data() + ((address + 63) / 64 * 64 - address);
  }
  bool GuardHolds() { return AllGuard(data() + bytes_, kGuard); }

 private:
  int64_t bytes_;
  std::vector<char> all_;
};

std::vector<ArrayRef> WithoutData(std::vector<ArrayRef> refs) {
  for (ArrayRef& ref : refs) ref.data = nullptr;
  return refs;
}

BindArgs MakeBindArgs(const std::vector<ArrayRef>& in, const std::vector<ArrayRef>& out,
                      const Attrs& attrs, int threads) {
  return {in.data(), static_cast<int>(in.size()), out.data(), static_cast<int>(out.size()), &attrs,
          threads};
}

HostArray CopyOf(const ArrayRef& ref) { return HostArray({ref.dtype, ref.shape}, ToDoubles(ref)); }

StatusOr<std::vector<HostArray>> ResolveView(const OpDef& op, const ArrayRef& in,
                                             const TensorMeta& out, const Attrs& attrs) {
  ArrayRef window{in.data, out.dtype, out.shape, ContiguousStrides(out.shape)};
  if (op.alias == Alias::kStrided) {
    const ViewWindow view = op.view({in.dtype, in.shape}, in.strides, out, attrs);
    window.data = in.as<char>() + view.offset * static_cast<int64_t>(SizeOf(in.dtype));
    window.strides = view.strides;
  } else if (!in.contiguous()) {
    return absl::InternalError("a reshape needs contiguous bytes");
  }
  return std::vector<HostArray>{CopyOf(window)};
}

}  // namespace

HostArray::HostArray(const TensorMeta& meta, const Strides& strides, int64_t span)
    : meta_(meta),
      strides_(strides),
      span_(span),
      bytes_(span * SizeOf(meta.dtype) + 2 * kGuard, kGuardByte) {
  std::fill_n(data(), span * SizeOf(meta.dtype), '\xff');
}

HostArray::HostArray(const TensorMeta& meta)
    : HostArray(meta, ContiguousStrides(meta.shape), meta.elements()) {}

HostArray::HostArray(const TensorMeta& meta, const Doubles& elements) : HostArray(meta) {
  for (int64_t i = 0; i < meta.elements(); ++i) SetElement(ref(), i, elements[i]);
}

HostArray HostArray::Strided() const {
  Strides strides = meta_.shape;
  int64_t step = 2;
  for (int axis = 0; axis < meta_.shape.rank(); ++axis) {
    strides.set_dim(axis, step);
    step *= meta_.shape.dim(axis);
  }
  HostArray copy(meta_, strides, 2 * meta_.elements());
  const Doubles elements = ToDoubles();
  for (int64_t i = 0; i < meta_.elements(); ++i) SetElement(copy.ref(), i, elements[i]);
  return copy;
}

char* HostArray::data() { return bytes_.data() + kGuard; }
const char* HostArray::data() const { return bytes_.data() + kGuard; }

ArrayRef HostArray::ref() { return {data(), meta_.dtype, meta_.shape, strides_}; }

ArrayRef HostArray::Rows(int64_t begin, int64_t end) {
  ArrayRef rows = ref();
  rows.data = data() + begin * strides_.dim(0) * static_cast<int64_t>(SizeOf(meta_.dtype));
  rows.shape.set_dim(0, end - begin);
  return rows;
}

Doubles HostArray::ToDoubles() const {
  return weft::testing::ToDoubles({const_cast<char*>(data()), meta_.dtype, meta_.shape, strides_});
}

bool HostArray::GuardsHold() const {
  const int64_t size = span_ * static_cast<int64_t>(SizeOf(meta_.dtype));
  return AllGuard(bytes_.data(), kGuard) && AllGuard(data() + size, kGuard);
}

Doubles ToDoubles(const ArrayRef& ref) {
  Doubles elements(ref.elements());
  const int64_t size = static_cast<int64_t>(SizeOf(ref.dtype));
  for (int64_t i = 0; i < ref.elements(); ++i) {
    elements[i] =
        LoadElement(ref.dtype, ref.as<char>() + OffsetOf(ref.shape, ref.strides, i) * size);
  }
  return elements;
}

void SetElement(const ArrayRef& ref, int64_t i, double value) {
  const int64_t size = static_cast<int64_t>(SizeOf(ref.dtype));
  StoreElement(ref.dtype, value, ref.as<char>() + OffsetOf(ref.shape, ref.strides, i) * size);
}

std::vector<std::string> CandidatesOf(const OpDef& op, const std::vector<ArrayRef>& in,
                                      const std::vector<TensorMeta>& out, const Attrs& attrs) {
  if (op.alias == Alias::kReshape || op.alias == Alias::kStrided) return {};
  const Kernel* kernel = BuiltinKernels().Find(op.name, DeviceKind::kCpu);
  if (kernel == nullptr) return {};
  if (kernel->candidates == nullptr) return {"default"};
  std::vector<ArrayRef> results;
  for (const TensorMeta& meta : out)
    results.push_back(MakeArrayRef(nullptr, meta.dtype, meta.shape));
  return kernel->candidates(MakeBindArgs(WithoutData(in), results, attrs, 1));
}

StatusOr<std::vector<HostArray>> RunKernel(const OpDef& op, const std::vector<ArrayRef>& in,
                                           const Attrs& attrs, const RunOptions& options) {
  std::vector<TensorMeta> metas;
  for (const ArrayRef& ref : in) metas.push_back({ref.dtype, ref.shape});
  ASSIGN_OR_RETURN(const std::vector<TensorMeta> out_metas, InferOp(op, metas, attrs));
  if (op.alias == Alias::kReshape || op.alias == Alias::kStrided) {
    return ResolveView(op, in[0], out_metas[0], attrs);
  }
  const Kernel* kernel = BuiltinKernels().Find(op.name, DeviceKind::kCpu);
  if (kernel == nullptr) return absl::UnimplementedError("no CPU kernel");

  std::vector<HostArray> results;
  const size_t written = op.alias == Alias::kInPlace ? op.alias_count : 0;
  for (size_t i = 0; i < std::max(out_metas.size(), written); ++i) {
    results.push_back(i < written ? CopyOf(in[i]) : HostArray(out_metas[i]));
  }
  std::vector<ArrayRef> operands = in, out;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i < out_metas.size()) out.push_back(results[i].ref());
    if (i < written) operands[i] = results[i].ref();
  }
  const std::vector<ArrayRef> bare_in = WithoutData(operands), bare_out = WithoutData(out);
  const BindArgs bind = MakeBindArgs(bare_in, bare_out, attrs, options.tiles->threads());
  std::string candidate = options.candidate;
  if (candidate.empty()) {
    candidate = kernel->candidates == nullptr ? "default" : kernel->candidates(bind).at(0);
  }
  Bound bound;
  for (const auto* list : {&bare_in, &bare_out}) {
    bound.error = RefusedDType(*kernel, list->data(), static_cast<int>(list->size()));
    if (!bound.error.empty()) return absl::InternalError(bound.error);
  }
  if (kernel->bind != nullptr) bound = kernel->bind(candidate, bind);
  if (!bound.error.empty()) return absl::InternalError(bound.error);

  Scratch scratch(bound.scratch_bytes);
  KernelArgs args;
  args.in = operands.data();
  args.in_count = static_cast<int>(operands.size());
  args.out = out.data();
  args.out_count = static_cast<int>(out.size());
  args.scratch = scratch.data();
  args.tiles = options.tiles;
  args.step = options.step;
  const int error = kernel->launch(bound.state.get(), args);
  if (error != 0) return absl::InternalError(absl::StrCat("launch returned ", error));
  if (!scratch.GuardHolds()) return absl::InternalError("the kernel wrote past its scratch");
  for (const HostArray& result : results) {
    if (!result.GuardsHold()) return absl::InternalError("the kernel wrote around a result");
  }
  return results;
}

}  // namespace weft::testing
