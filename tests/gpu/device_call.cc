#include "tests/gpu/device_call.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "worker/core/dispatch/kernel_table.h"

namespace weft::testing {
namespace {

constexpr int64_t kGuard = 256;
constexpr uint8_t kGuardByte = 0x5a;

int64_t SpanBytes(const ArrayRef& ref) {
  if (ref.elements() == 0) return 0;
  int64_t last = 0;
  for (int axis = 0; axis < ref.shape.rank(); ++axis) {
    last += (ref.shape.dim(axis) - 1) * ref.strides.dim(axis);
  }
  return (last + 1) * static_cast<int64_t>(SizeOf(ref.dtype));
}

std::vector<ArrayRef> WithoutData(std::vector<ArrayRef> refs) {
  for (ArrayRef& ref : refs) ref.data = nullptr;
  return refs;
}

StatusOr<std::vector<TensorMeta>> Infer(const OpDef& op, const std::vector<ArrayRef>& in,
                                        const Attrs& attrs) {
  std::vector<TensorMeta> metas;
  for (const ArrayRef& ref : in) metas.push_back({ref.dtype, ref.shape});
  return InferOp(op, metas, attrs);
}

}  // namespace

GpuUnderTest& Gpu() {
  static GpuUnderTest* const gpu = [] {
    auto* made = new GpuUnderTest;
    StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(0);
    if (!device.ok()) {
      std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
      std::exit(1);
    }
    made->device = *std::move(device);
    made->stream = *made->device->CreateStream();
    return made;
  }();
  return *gpu;
}

Status DeviceCall::Place(const ArrayRef& host, Operand* operand) {
  Device& device = *Gpu().device;
  operand->bytes = SpanBytes(host);
  const int64_t all = operand->bytes + 2 * kGuard;
  ASSIGN_OR_RETURN(void* const base, device.Allocate(all));
  operand->base = static_cast<char*>(base);
  operand->ref = host;
  operand->ref.data = operand->base + kGuard;
  RETURN_IF_ERROR(device.Fill(base, kGuardByte, all, Gpu().stream));
  if (host.data == nullptr) return absl::OkStatus();
  return device.Copy(operand->ref.data, host.data, operand->bytes, Gpu().stream);
}

StatusOr<std::unique_ptr<DeviceCall>> DeviceCall::Make(const OpDef& op,
                                                       const std::vector<ArrayRef>& in,
                                                       const Attrs& attrs,
                                                       const std::string& candidate) {
  std::unique_ptr<DeviceCall> call(new DeviceCall);
  call->kernel_ = BuiltinKernels().Find(op.name, DeviceKind::kCuda);
  if (call->kernel_ == nullptr) return absl::UnimplementedError("no CUDA kernel for " + op.name);
  ASSIGN_OR_RETURN(call->out_metas_, Infer(op, in, attrs));
  call->written_ = op.alias == Alias::kInPlace ? static_cast<size_t>(op.alias_count) : 0;
  for (const ArrayRef& ref : in) {
    call->in_.emplace_back();
    RETURN_IF_ERROR(call->Place(ref, &call->in_.back()));
  }
  std::vector<ArrayRef> out;
  for (size_t i = 0; i < call->out_metas_.size(); ++i) {
    const TensorMeta& meta = call->out_metas_[i];
    out.push_back(MakeArrayRef(nullptr, meta.dtype, meta.shape));
    call->out_.emplace_back();
    if (i >= call->written_) RETURN_IF_ERROR(call->Place(out.back(), &call->out_.back()));
  }
  const std::vector<ArrayRef> bare = WithoutData(in);
  const BindArgs args{bare.data(), static_cast<int>(bare.size()),
                      out.data(),  static_cast<int>(out.size()),
                      &attrs,      1};
  for (const std::vector<ArrayRef>* list :
       {&bare, static_cast<const std::vector<ArrayRef>*>(&out)}) {
    const std::string refused =
        RefusedDType(*call->kernel_, list->data(), static_cast<int>(list->size()));
    if (!refused.empty()) return Internal(op.name, ": ", refused);
  }
  if (call->kernel_->bind != nullptr) call->bound_ = call->kernel_->bind(candidate, args);
  if (!call->bound_.error.empty()) return Internal(op.name, ": ", call->bound_.error);
  const ArrayRef scratch = MakeArrayRef(nullptr, DType::kU8, Shape{call->bound_.scratch_bytes});
  RETURN_IF_ERROR(call->Place(scratch, &call->scratch_));
  return call;
}

DeviceCall::~DeviceCall() {
  for (const auto* list : {&in_, &out_}) {
    for (const Operand& operand : *list) {
      if (operand.base != nullptr) Gpu().device->Free(operand.base);
    }
  }
  if (scratch_.base != nullptr) Gpu().device->Free(scratch_.base);
}

std::vector<std::string> DeviceCall::Candidates(const OpDef& op, const std::vector<ArrayRef>& in,
                                                const Attrs& attrs) {
  const Kernel* kernel = BuiltinKernels().Find(op.name, DeviceKind::kCuda);
  const StatusOr<std::vector<TensorMeta>> metas = Infer(op, in, attrs);
  if (kernel == nullptr || kernel->candidates == nullptr || !metas.ok()) return {"default"};
  std::vector<ArrayRef> out;
  for (const TensorMeta& meta : *metas) {
    out.push_back(MakeArrayRef(nullptr, meta.dtype, meta.shape));
  }
  const std::vector<ArrayRef> bare = WithoutData(in);
  return kernel->candidates({bare.data(), static_cast<int>(bare.size()), out.data(),
                             static_cast<int>(out.size()), &attrs, 1});
}

Status DeviceCall::Run(const StepState& step) {
  std::vector<ArrayRef> in, out;
  for (const Operand& operand : in_) in.push_back(operand.ref);
  for (size_t i = 0; i < out_.size(); ++i) {
    out.push_back(i < written_ ? in_[i].ref : out_[i].ref);
  }
  KernelArgs args;
  args.in = in.data();
  args.in_count = static_cast<int>(in.size());
  args.out = out.data();
  args.out_count = static_cast<int>(out.size());
  args.scratch = scratch_.ref.data;
  args.stream = Gpu().stream;
  args.step = step;
  const int error = kernel_->launch(bound_.state.get(), args);
  return error == 0 ? absl::OkStatus() : Internal(Gpu().device->Describe(error));
}

Status DeviceCall::Launch(const StepState& step, How how) {
  Device& device = *Gpu().device;
  const StreamTag stream = Gpu().stream;
  for (const Operand& operand : out_) {
    if (operand.base == nullptr) continue;
    RETURN_IF_ERROR(device.Fill(operand.ref.data, 0xff, operand.bytes, stream));
  }
  // What a kernel leaves in scratch may not matter to its next launch.
  RETURN_IF_ERROR(device.Fill(scratch_.ref.data, 0xff, scratch_.bytes, stream));
  if (how == How::kEager) return Run(step);
  RETURN_IF_ERROR(device.BeginCapture(stream));
  const Status ran = Run(step);
  StatusOr<GraphTag> graph = device.EndCapture(stream);
  RETURN_IF_ERROR(ran);
  RETURN_IF_ERROR(graph.status());
  RETURN_IF_ERROR(device.LaunchGraph(*graph, stream));
  const Status done = device.Synchronize(stream);
  device.DestroyGraph(*graph);
  return done;
}

StatusOr<std::vector<HostArray>> DeviceCall::Results() {
  Device& device = *Gpu().device;
  const auto check = [&](const Operand& operand, const char* what, size_t i) -> Status {
    if (operand.base == nullptr) return absl::OkStatus();
    std::vector<uint8_t> guard(2 * kGuard);
    RETURN_IF_ERROR(device.Copy(guard.data(), operand.base, kGuard, Gpu().stream));
    RETURN_IF_ERROR(device.Copy(guard.data() + kGuard, operand.base + kGuard + operand.bytes,
                                kGuard, Gpu().stream));
    RETURN_IF_ERROR(device.Synchronize(Gpu().stream));
    for (const uint8_t byte : guard) {
      if (byte != kGuardByte) return Internal("wrote around ", what, " ", i);
    }
    return absl::OkStatus();
  };
  for (size_t i = 0; i < in_.size(); ++i) RETURN_IF_ERROR(check(in_[i], "input", i));
  for (size_t i = 0; i < out_.size(); ++i) RETURN_IF_ERROR(check(out_[i], "result", i));
  RETURN_IF_ERROR(check(scratch_, "scratch", 0));
  std::vector<HostArray> results;
  for (size_t i = 0; i < out_metas_.size(); ++i) {
    results.emplace_back(out_metas_[i]);
    const Operand& from = i < written_ ? in_[i] : out_[i];
    RETURN_IF_ERROR(
        device.Copy(results.back().ref().data, from.ref.data, from.bytes, Gpu().stream));
  }
  RETURN_IF_ERROR(device.Synchronize(Gpu().stream));
  return results;
}

}  // namespace weft::testing
