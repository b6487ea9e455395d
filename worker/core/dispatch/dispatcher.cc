#include "worker/core/dispatch/dispatcher.h"

#include <utility>

#include "fabric/base/clock.h"
#include "worker/core/autograd/call_key.h"

namespace weft {
namespace {

constexpr const char* kCopyOp = "copy";  // any strides -> contiguous
constexpr size_t kBoundMost = 4096;      // shapes may vary without end; the cache starts over then

std::vector<TensorMeta> MetasOf(const std::vector<Tensor>& tensors) {
  std::vector<TensorMeta> metas;
  metas.reserve(tensors.size());
  for (const Tensor& t : tensors) metas.push_back(t.meta());
  return metas;
}

bool IsView(const OpDef& op) { return op.alias == Alias::kReshape || op.alias == Alias::kStrided; }

int WrittenInputs(const OpDef& op) { return op.alias == Alias::kInPlace ? op.alias_count : 0; }

std::vector<ArrayRef> RefsOf(const std::vector<Tensor>& tensors) {
  std::vector<ArrayRef> refs;
  refs.reserve(tensors.size());
  for (const Tensor& t : tensors) refs.push_back(t.ref());
  return refs;
}

Status CheckOperands(const OpDef& op, const std::vector<Tensor>& in, DeviceId device) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].valid()) return InvalidArgument(op.name, ": input ", i, " is not a tensor");
    if (in[i].device() != device) {
      return InvalidArgument(op.name, ": input ", i, " is on ", NameOf(in[i].device().kind), ":",
                             in[i].device().index, ", the op runs on ", NameOf(device.kind), ":",
                             device.index, "; copy it there first");
    }
  }
  for (int i = 0; i < WrittenInputs(op); ++i) {
    if (!in[i].contiguous()) {
      return InvalidArgument(op.name, ": input ", i, ", ", ToString(in[i].meta()),
                             ", is written in place and so must be contiguous; its strides are ",
                             ToString(in[i].strides()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<Tensor>> Dispatcher::Run(const OpDef& op, const std::vector<Tensor>& given,
                                              const Attrs& attrs, const StepState& step) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].valid()) return InvalidArgument(op.name, ": input ", i, " is not a tensor");
  }
  ASSIGN_OR_RETURN(std::vector<Tensor> in, Operands(op, given));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Prepared> prepared, Prepare(op, in, attrs));
  RETURN_IF_ERROR(CheckOperands(op, in, context_.allocator->device()));
  if (IsView(op)) return RunView(op, prepared->out, in, attrs);
  ASSIGN_OR_RETURN(std::vector<Tensor> out, Results(op, prepared->out, in));
  RETURN_IF_ERROR(Launch(op, *prepared, in, out, step));
  // Written results are made anew, so that they carry the version after the write.
  for (int i = 0; i < WrittenInputs(op); ++i) in[i].storage()->BumpVersion();
  for (int i = 0; i < WrittenInputs(op); ++i) out[i] = in[i].Detached();
  return out;
}

StatusOr<std::vector<Tensor>> Dispatcher::Operands(const OpDef& op, const std::vector<Tensor>& in) {
  std::vector<Tensor> operands = in;
  if (op.strided_inputs || IsView(op)) return operands;
  for (size_t i = WrittenInputs(op); i < operands.size(); ++i) {
    if (operands[i].contiguous()) continue;
    ASSIGN_OR_RETURN(operands[i], Contiguous(operands[i]));
  }
  return operands;
}

StatusOr<Tensor> Dispatcher::Contiguous(const Tensor& tensor) {
  ASSIGN_OR_RETURN(const OpDef* copy, context_.ops->Get(kCopyOp));
  if (!copy->strided_inputs) return Internal(kCopyOp, ": must take any strides");
  ASSIGN_OR_RETURN(std::vector<Tensor> out, Run(*copy, {tensor}, {}, {}));
  return out[0];
}

StatusOr<std::vector<Tensor>> Dispatcher::RunView(const OpDef& op,
                                                  const std::vector<TensorMeta>& out,
                                                  const std::vector<Tensor>& in,
                                                  const Attrs& attrs) {
  Tensor source = in[0];
  ViewWindow window;
  if (op.alias == Alias::kReshape) {
    if (!source.contiguous()) {
      ASSIGN_OR_RETURN(source, Contiguous(source));
    }
    window.strides = ContiguousStrides(out[0].shape);
  } else {
    window = op.view(source.meta(), source.strides(), out[0], attrs);
  }
  StatusOr<Tensor> view = source.Window(out[0], window.offset, window.strides);
  if (!view.ok()) return Annotate(view.status(), op.name);
  return std::vector<Tensor>{*std::move(view)};
}

StatusOr<std::shared_ptr<const Dispatcher::Prepared>> Dispatcher::Prepare(
    const OpDef& op, const std::vector<Tensor>& in, const Attrs& attrs) {
  const std::vector<TensorMeta> metas = MetasOf(in);
  std::string key;
  if (!op.random) {  // the state of a random op holds its key, which no other call has
    key = CallKey(op, metas, attrs);
    if (op.strided_inputs || IsView(op)) {
      for (const Tensor& t : in) AppendKey(key, t.strides());
    }
    if (const auto it = bound_.find(key); it != bound_.end()) return it->second;
  }
  ASSIGN_OR_RETURN(std::vector<TensorMeta> out, InferOp(op, metas, attrs));
  auto prepared = std::make_shared<Prepared>();
  if (IsView(op)) {
    prepared->out = std::move(out);
  } else {
    ASSIGN_OR_RETURN(*prepared, BindKernel(op, in, attrs, std::move(out)));
  }
  if (!op.random) {
    if (bound_.size() >= kBoundMost) bound_.clear();
    bound_.emplace(std::move(key), prepared);
  }
  return std::shared_ptr<const Prepared>(std::move(prepared));
}

StatusOr<Dispatcher::Prepared> Dispatcher::BindKernel(const OpDef& op,
                                                      const std::vector<Tensor>& in,
                                                      const Attrs& attrs,
                                                      std::vector<TensorMeta> out) {
  const DeviceKind device = context_.allocator->device().kind;
  Prepared prepared;
  prepared.out = std::move(out);
  prepared.kernel = context_.kernels->Find(op.name, device);
  if (prepared.kernel == nullptr) {
    return absl::UnimplementedError(absl::StrCat(op.name, ": has no kernel for ", NameOf(device)));
  }
  std::vector<ArrayRef> ins = RefsOf(in), outs;
  for (ArrayRef& ref : ins) ref.data = nullptr;
  for (const TensorMeta& m : prepared.out) {
    outs.push_back(MakeArrayRef(nullptr, m.dtype, m.shape));
  }
  BindArgs args;
  args.in = ins.data();
  args.in_count = static_cast<int>(ins.size());
  args.out = outs.data();
  args.out_count = static_cast<int>(outs.size());
  args.attrs = &attrs;
  args.threads = context_.tiles != nullptr ? context_.tiles->threads() : 1;
  for (const auto* list : {&ins, &outs}) {
    const std::string refused =
        RefusedDType(*prepared.kernel, list->data(), static_cast<int>(list->size()));
    if (!refused.empty()) return InvalidArgument(op.name, ": ", refused);
  }
  std::string candidate = "default";
  if (prepared.kernel->candidates != nullptr) {
    const std::vector<std::string> candidates = prepared.kernel->candidates(args);
    if (candidates.empty()) {
      return absl::UnimplementedError(
          absl::StrCat(op.name, ": no kernel of ", NameOf(device), " takes these operands"));
    }
    candidate = candidates[0];  // the best by the family's own order; jobs name theirs in the plan
  }
  if (prepared.kernel->bind != nullptr) prepared.bound = prepared.kernel->bind(candidate, args);
  if (!prepared.bound.error.empty()) {
    return InvalidArgument(op.name, ": kernel ", candidate, ": ", prepared.bound.error);
  }
  return prepared;
}

StatusOr<std::vector<Tensor>> Dispatcher::Results(const OpDef& op,
                                                  const std::vector<TensorMeta>& metas,
                                                  const std::vector<Tensor>& in) {
  std::vector<Tensor> out;
  out.reserve(metas.size());
  for (size_t i = 0; i < metas.size(); ++i) {
    if (static_cast<int>(i) < WrittenInputs(op)) {
      out.push_back(in[i]);
      continue;
    }
    ASSIGN_OR_RETURN(Tensor fresh, EmptyTensor(*context_.allocator, metas[i], op.name));
    out.push_back(std::move(fresh));
  }
  return out;
}

Status Dispatcher::Launch(const OpDef& op, const Prepared& prepared, const std::vector<Tensor>& in,
                          const std::vector<Tensor>& out, const StepState& step) {
  const std::vector<ArrayRef> ins = RefsOf(in), outs = RefsOf(out);
  Buffer scratch;
  if (prepared.bound.scratch_bytes > 0) {
    ASSIGN_OR_RETURN(scratch, context_.allocator->Allocate(
                                  static_cast<size_t>(prepared.bound.scratch_bytes), "scratch"));
  }
  KernelArgs args;
  args.in = ins.data();
  args.in_count = static_cast<int>(ins.size());
  args.out = outs.data();
  args.out_count = static_cast<int>(outs.size());
  args.scratch = scratch.data();
  args.stream = context_.stream;
  args.tiles = context_.tiles;
  args.step = step;
  const bool traced = context_.trace != nullptr && context_.trace->enabled();
  const absl::Duration start = traced ? RealClock().Monotonic() : absl::ZeroDuration();
  const int error = prepared.kernel->launch(prepared.bound.state.get(), args);
  if (traced) {
    int64_t bytes = 0;
    for (const Tensor& t : in) bytes += t.meta().bytes();
    for (const Tensor& t : out) bytes += t.meta().bytes();
    context_.trace->Add({op.name.c_str(), absl::ToInt64Nanoseconds(start),
                         absl::ToInt64Nanoseconds(RealClock().Monotonic() - start), bytes});
  }
  if (error != 0) {
    return Internal(op.name, ": ", NameOf(context_.allocator->device().kind), " error ", error);
  }
  return absl::OkStatus();
}

}  // namespace weft
