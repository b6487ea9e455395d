#include "fabric/graph/program_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kLowBytes = 2;
constexpr int64_t kStepBytes = 8;
constexpr int64_t kMostArenaBytes = int64_t{1} << 46;
constexpr int64_t kMostOffset = int64_t{1} << 47;
constexpr size_t kMostCalls = 4'000'000;
constexpr size_t kMostStates = 8;
constexpr size_t kMostStats = 64;

// Bytes between the first and past the last element that strides reach, and before the first. False
// when they do not fit into 2^47.
bool Extent(const TensorMeta& meta, const Strides& strides, int64_t* below, int64_t* above) {
  *below = *above = 0;
  if (meta.elements() == 0) return true;
  const int64_t size = static_cast<int64_t>(SizeOf(meta.dtype));
  *above = size;
  for (int i = 0; i < meta.shape.rank(); ++i) {
    const __int128 reach = static_cast<__int128>(meta.shape.dim(i) - 1) * strides.dim(i) * size;
    if (reach > kMostOffset || reach < -kMostOffset) return false;
    (reach < 0 ? *below : *above) += static_cast<int64_t>(reach < 0 ? -reach : reach);
    if (*below > kMostOffset || *above > kMostOffset) return false;
  }
  return true;
}

class SectionChecker {
 public:
  SectionChecker(const OpSet& ops, const Program& program, const Section& section,
                 const std::vector<InputSlot>& inputs, std::vector<Space> writable)
      : ops_(ops),
        program_(program),
        section_(section),
        inputs_(inputs),
        writable_(std::move(writable)) {}

  Status Run() const {
    if (section_.arena_bytes < 0 || section_.arena_bytes > kMostArenaBytes) {
      return InvalidArgument("arena of ", section_.arena_bytes, " bytes, the limit is ",
                             kMostArenaBytes);
    }
    if (section_.calls.size() > kMostCalls) {
      return InvalidArgument(section_.calls.size(), " calls, the limit is ", kMostCalls);
    }
    for (const Call& call : section_.calls) {
      RETURN_IF_ERROR(
          Annotate(CheckCall(call), absl::StrCat("node '", call.node, "' (", call.op, ")")));
    }
    return absl::OkStatus();
  }

  Status CheckOperand(const Operand& o) const {
    RETURN_IF_ERROR(CheckShape(o.meta.dtype, o.meta.shape.begin(), o.meta.shape.rank()));
    if (o.strides.rank() != o.meta.shape.rank()) {
      return InvalidArgument("strides ", ToString(o.strides), " for shape ",
                             ToString(o.meta.shape));
    }
    ASSIGN_OR_RETURN(const int64_t size, SizeOfBuffer(o));
    int64_t below = 0, above = 0;
    if (!Extent(o.meta, o.strides, &below, &above) || o.offset < below || o.offset > size - above) {
      return InvalidArgument("bytes from ", o.offset, " of ", ToString(o.meta),
                             " leave a buffer of ", size);
    }
    if (o.offset % static_cast<int64_t>(SizeOf(o.meta.dtype)) != 0) {
      return InvalidArgument("offset ", o.offset, " is not aligned for ", NameOf(o.meta.dtype));
    }
    return absl::OkStatus();
  }

 private:
  StatusOr<int64_t> SizeOfBuffer(const Operand& o) const {
    const int64_t flat = program_.flat_elements * kFloatBytes;
    DType wanted = DType::kF32;
    int64_t size = flat;
    bool exists = o.index == 0;
    switch (o.space) {
      case Space::kParam:
      case Space::kGrad:
        break;
      case Space::kState:
        exists = o.index >= 0 && static_cast<size_t>(o.index) < program_.states.size();
        break;
      case Space::kStats:
        size = static_cast<int64_t>(program_.stats.size()) * kFloatBytes;
        break;
      case Space::kInput:
        exists = o.index >= 0 && static_cast<size_t>(o.index) < inputs_.size();
        if (exists) {
          wanted = inputs_[o.index].meta.dtype;
          size = inputs_[o.index].meta.bytes();
        }
        break;
      case Space::kArena:
        return exists ? StatusOr<int64_t>(section_.arena_bytes)
                      : InvalidArgument("arena ", o.index, " does not exist");
      case Space::kLow:
        exists = exists && program_.low_copy;
        wanted = DType::kBF16;
        size = program_.flat_elements * kLowBytes;
        break;
      case Space::kStep:
        wanted = DType::kI64;
        size = kStepBytes;
        break;
      default:
        exists = false;
    }
    if (!exists) {
      return InvalidArgument("buffer ", static_cast<int>(o.space), ".", o.index, " does not exist");
    }
    if (o.meta.dtype != wanted) {
      return InvalidArgument("operand is ", NameOf(o.meta.dtype), ", its buffer holds ",
                             NameOf(wanted));
    }
    return size;
  }

  Status CheckCall(const Call& call) const {
    const OpDef* op = ops_.Find(call.op);
    if (op == nullptr) return InvalidArgument("no op '", call.op.substr(0, 253), "'");
    if (op->alias == Alias::kReshape || op->alias == Alias::kStrided || op->expand != nullptr) {
      return InvalidArgument("has no kernel: views and composite ops are no calls");
    }
    std::vector<TensorMeta> in;
    for (size_t i = 0; i < call.in.size(); ++i) {
      RETURN_IF_ERROR(Annotate(CheckOperand(call.in[i]), absl::StrCat("input ", i)));
      if (!op->strided_inputs && !IsContiguous(call.in[i].meta.shape, call.in[i].strides)) {
        return InvalidArgument("input ", i, " is not contiguous, which this op needs");
      }
      in.push_back(call.in[i].meta);
    }
    ASSIGN_OR_RETURN(const std::vector<TensorMeta> out, InferOp(*op, in, call.attrs));
    if (out.size() != call.out.size()) {
      return InvalidArgument("has ", out.size(), " results, the call names ", call.out.size());
    }
    for (size_t i = 0; i < out.size(); ++i) {
      RETURN_IF_ERROR(Annotate(CheckResult(*op, call, i, out[i]), absl::StrCat("result ", i)));
    }
    return absl::OkStatus();
  }

  Status CheckResult(const OpDef& op, const Call& call, size_t i,
                     const TensorMeta& inferred) const {
    const Operand& o = call.out[i];
    RETURN_IF_ERROR(CheckOperand(o));
    if (o.meta != inferred) {
      return InvalidArgument("is ", ToString(inferred), ", the call says ", ToString(o.meta));
    }
    if (!IsContiguous(o.meta.shape, o.strides)) return InvalidArgument("is not contiguous");
    if (std::find(writable_.begin(), writable_.end(), o.space) == writable_.end()) {
      return InvalidArgument("is in buffer ", static_cast<int>(o.space),
                             ", which this section may not write");
    }
    if (op.alias == Alias::kInPlace && static_cast<int>(i) < op.alias_count) {
      const Operand& written = call.in[i];
      if (written.space != o.space || written.index != o.index || written.offset != o.offset) {
        return InvalidArgument("must be input ", i, " itself");
      }
    }
    return absl::OkStatus();
  }

  const OpSet& ops_;
  const Program& program_;
  const Section& section_;
  const std::vector<InputSlot>& inputs_;
  const std::vector<Space> writable_;
};

Status CheckSlots(const Program& program) {
  const int64_t flat = program.flat_elements;
  if (flat < 0 || flat % kFlatAlign != 0) {
    return InvalidArgument("flat buffers of ", flat, " elements, no multiple of ", kFlatAlign);
  }
  RETURN_IF_ERROR(CheckShape(DType::kF32, &flat, 1));
  absl::flat_hash_set<std::string> names;
  int64_t reached = 0;
  for (const ParameterSlot& slot : program.parameters) {
    RETURN_IF_ERROR(CheckShape(DType::kF32, slot.shape.begin(), slot.shape.rank()));
    if (slot.name.empty() || !names.insert(slot.name).second) {
      return InvalidArgument("parameter name '", slot.name, "' is empty or taken");
    }
    if (slot.offset % kFlatAlign != 0 || slot.offset < reached || slot.offset > flat ||
        slot.shape.elements() > flat - slot.offset) {
      return InvalidArgument("parameter '", slot.name, "' ", ToString(slot.shape), " at ",
                             slot.offset, " overlaps another or leaves the flat buffers");
    }
    reached = slot.offset + slot.shape.elements();
  }
  if (program.states.size() > kMostStates || program.stats.size() > kMostStats) {
    return InvalidArgument(program.states.size(), " states and ", program.stats.size(),
                           " stats, the limits are ", kMostStates, " and ", kMostStats);
  }
  for (const auto* inputs : {&program.inputs, &program.eval_inputs, &program.predict_inputs}) {
    for (const InputSlot& slot : *inputs) {
      RETURN_IF_ERROR(
          Annotate(CheckShape(slot.meta.dtype, slot.meta.shape.begin(), slot.meta.shape.rank()),
                   absl::StrCat("input '", slot.name, "'")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status ValidateProgram(const OpSet& ops, const Program& program) {
  RETURN_IF_ERROR(CheckSlots(program));
  if (!program.train.calls.empty() &&
      (program.stats.size() < 2 || program.stats[0] != "loss_sum" || program.stats[1] != "count")) {
    return InvalidArgument("stats begin with loss_sum and count");
  }
  const std::vector<InputSlot> none;
  const SectionChecker train(ops, program, program.train, program.inputs,
                             {Space::kGrad, Space::kStats, Space::kArena});
  const SectionChecker update(
      ops, program, program.update, none,
      {Space::kParam, Space::kLow, Space::kState, Space::kGrad, Space::kStats, Space::kArena});
  const SectionChecker evaluate(ops, program, program.evaluate, program.eval_inputs,
                                {Space::kStats, Space::kArena});
  const SectionChecker predict(ops, program, program.predict, program.predict_inputs,
                               {Space::kArena});
  const SectionChecker refresh(ops, program, program.refresh, none, {Space::kLow});
  if (program.low_copy == program.refresh.calls.empty()) {
    return InvalidArgument(
        "a low copy of the parameters comes with a refresh section, and only so");
  }
  RETURN_IF_ERROR(Annotate(train.Run(), "train"));
  RETURN_IF_ERROR(Annotate(update.Run(), "update"));
  RETURN_IF_ERROR(Annotate(evaluate.Run(), "evaluate"));
  RETURN_IF_ERROR(Annotate(predict.Run(), "predict"));
  RETURN_IF_ERROR(Annotate(refresh.Run(), "refresh"));
  if (program.predict.calls.empty()) return absl::OkStatus();
  if (program.logits.meta.dtype != DType::kF32 || program.logits.space != Space::kArena) {
    return InvalidArgument("logits are f32 in predict's arena");
  }
  return Annotate(predict.CheckOperand(program.logits), "logits");
}

}  // namespace weft
