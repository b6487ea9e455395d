#include "worker/exec/bound_section.h"

#include <algorithm>
#include <utility>

#include "fabric/base/error_detail.h"

namespace weft {

StatusOr<BoundSection> BoundSection::Bind(const Section& section, const KernelTable& kernels,
                                          DeviceKind device, int threads) {
  BoundSection bound;
  for (const Call& call : section.calls) {
    BoundCall c;
    c.node = absl::StrCat(call.node, " (", call.op, ")");
    c.kernel = kernels.Find(call.op, device);
    if (c.kernel == nullptr) {
      return NotFound(c.node, ": there is no ", NameOf(device), " kernel for op '", call.op, "'");
    }
    for (const std::vector<Operand>* list : {&call.in, &call.out}) {
      for (const Operand& o : *list) {
        c.operands.push_back({nullptr, o.meta.dtype, o.meta.shape, o.strides});
        c.addresses.push_back({o.space, o.index, o.offset});
      }
    }
    c.in_count = static_cast<int>(call.in.size());
    c.out_count = static_cast<int>(call.out.size());
    const std::string refused =
        RefusedDType(*c.kernel, c.operands.data(), static_cast<int>(c.operands.size()));
    if (!refused.empty()) return InvalidArgument(c.node, ": ", refused);
    if (c.kernel->bind != nullptr) {
      const BindArgs args{c.operands.data(), c.in_count,  c.operands.data() + c.in_count,
                          c.out_count,       &call.attrs, threads};
      c.bound = c.kernel->bind(call.kernel.empty() ? "default" : call.kernel, args);
      if (!c.bound.error.empty()) return InvalidArgument(c.node, ": ", c.bound.error);
    }
    bound.scratch_bytes_ = std::max(bound.scratch_bytes_, c.bound.scratch_bytes);
    bound.calls_.push_back(std::move(c));
  }
  return bound;
}

void BoundSection::Name(absl::string_view name, const Section& section, StepTrace* trace) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].label = trace->AddCall(name, section.calls[i]);
  }
}

Status BoundSection::Run(const SpaceBases& bases, const Launcher& launcher, const StepState& step) {
  for (BoundCall& call : calls_) {
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const Address& a = call.addresses[i];
      call.operands[i].data = static_cast<char*>(bases.Find(a.space, a.index)) + a.offset;
    }
    KernelArgs args;
    args.in = call.operands.data();
    args.in_count = call.in_count;
    args.out = call.operands.data() + call.in_count;
    args.out_count = call.out_count;
    args.scratch = launcher.scratch;
    args.stream = launcher.stream;
    args.tiles = launcher.tiles;
    args.step = step;
    args.device_step = launcher.device_step;
    args.gate = launcher.gate;
    const absl::Duration begin =
        launcher.trace == nullptr ? absl::ZeroDuration() : launcher.trace->Now();
    if (const int error = call.kernel->launch(call.bound.state.get(), args); error != 0) {
      ErrorDetail detail;
      detail.origin = "executor";
      detail.action = ErrorAction::kRestartWorker;
      detail.step = step.step;
      detail.op = call.node;
      return WithDetail(Internal(call.node, ": ",
                                 launcher.device == nullptr ? absl::StrCat("error ", error)
                                                            : launcher.device->Describe(error),
                                 " at step ", step.step),
                        detail);
    }
    if (launcher.trace != nullptr) launcher.trace->Ran(call.label, launcher.stream, begin);
  }
  return absl::OkStatus();
}

}  // namespace weft
