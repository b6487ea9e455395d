#include "fabric/wire/convert_plan.h"

#include <string>

#include "fabric/wire/convert_graph.h"
#include "fabric/wire/convert_types.h"

namespace weft::wire {
namespace {

// Space values are ours from 0; proto's start with UNSPECIFIED.
v1::Space SpaceToProto(Space space) { return static_cast<v1::Space>(static_cast<int>(space) + 1); }
static_assert(static_cast<int>(Space::kLow) + 1 == v1::SPACE_LOW);

// So are precisions.
v1::Precision PrecisionToProto(ComputePrecision precision) {
  return static_cast<v1::Precision>(static_cast<int>(precision) + 1);
}
static_assert(static_cast<int>(ComputePrecision::kBf16) + 1 == v1::PRECISION_BF16);

v1::Operand OperandToProto(const Operand& o) {
  v1::Operand proto;
  proto.set_space(SpaceToProto(o.space));
  proto.set_index(o.index);
  proto.set_offset(o.offset);
  *proto.mutable_meta() = ToProto(o.meta);
  if (!(o.strides == ContiguousStrides(o.meta.shape))) {
    for (const int64_t s : o.strides) proto.add_strides(s);
  }
  return proto;
}

StatusOr<Operand> OperandFromProto(const v1::Operand& proto) {
  Operand o;
  if (proto.space() <= v1::SPACE_UNSPECIFIED || proto.space() > v1::SPACE_LOW) {
    return InvalidArgument("there is no space ", static_cast<int>(proto.space()));
  }
  o.space = static_cast<Space>(proto.space() - 1);
  o.index = proto.index();
  o.offset = proto.offset();
  ASSIGN_OR_RETURN(o.meta, FromProto(proto.meta()));
  o.strides = ContiguousStrides(o.meta.shape);
  if (proto.strides().empty()) return o;
  if (proto.strides_size() != o.meta.shape.rank()) {
    return InvalidArgument(proto.strides_size(), " strides for ", ToString(o.meta));
  }
  for (int i = 0; i < proto.strides_size(); ++i) o.strides.set_dim(i, proto.strides(i));
  return o;
}

v1::Section SectionToProto(const Section& section) {
  v1::Section proto;
  proto.set_arena_bytes(section.arena_bytes);
  for (const Call& c : section.calls) {
    v1::KernelCall* call = proto.add_calls();
    call->set_op(c.op);
    call->set_kernel(c.kernel);
    call->set_node(c.node);
    ToProto(c.attrs, call->mutable_attributes());
    for (const Operand& o : c.in) *call->add_inputs() = OperandToProto(o);
    for (const Operand& o : c.out) *call->add_outputs() = OperandToProto(o);
  }
  return proto;
}

StatusOr<Call> CallFromProto(const v1::KernelCall& proto) {
  Call call{proto.op(), proto.kernel(), proto.node(), {}, {}, {}};
  ASSIGN_OR_RETURN(call.attrs, FromProto(proto.attributes()));
  for (const v1::Operand& o : proto.inputs()) {
    ASSIGN_OR_RETURN(Operand operand, OperandFromProto(o));
    call.in.push_back(operand);
  }
  for (const v1::Operand& o : proto.outputs()) {
    ASSIGN_OR_RETURN(Operand operand, OperandFromProto(o));
    call.out.push_back(operand);
  }
  return call;
}

StatusOr<Section> SectionFromProto(const v1::Section& proto) {
  Section section;
  section.arena_bytes = proto.arena_bytes();
  for (const v1::KernelCall& c : proto.calls()) {
    StatusOr<Call> call = CallFromProto(c);
    if (!call.ok()) {
      return Annotate(call.status(), absl::StrCat("node '", c.node().substr(0, 253), "'"));
    }
    section.calls.push_back(*std::move(call));
  }
  return section;
}

template <typename Repeated>
void SlotsToProto(const std::vector<InputSlot>& slots, Repeated* proto) {
  for (const InputSlot& s : slots) {
    v1::InputSlot* slot = proto->Add();
    slot->set_name(s.name);
    *slot->mutable_meta() = ToProto(s.meta);
  }
}

template <typename Repeated>
StatusOr<std::vector<InputSlot>> SlotsFromProto(const Repeated& proto) {
  std::vector<InputSlot> slots;
  for (const v1::InputSlot& s : proto) {
    StatusOr<TensorMeta> meta = FromProto(s.meta());
    if (!meta.ok()) return Annotate(meta.status(), absl::StrCat("input '", s.name(), "'"));
    slots.push_back({s.name(), *meta});
  }
  return slots;
}

StatusOr<ParameterSlot> ParameterFromProto(const v1::ParameterSlot& proto) {
  ParameterSlot slot;
  slot.name = proto.name();
  ASSIGN_OR_RETURN(slot.shape, ShapeFromProto(DType::kF32, proto.dims()));
  ASSIGN_OR_RETURN(slot.init, InitFromProto(proto.init(), proto.init_scale()));
  slot.offset = proto.offset();
  slot.decay = proto.decay();
  return slot;
}

Status CheckShares(const Plan& plan) {
  if (plan.lanes < 1 || plan.ranks < 1 || static_cast<size_t>(plan.ranks) != plan.shares.size()) {
    return InvalidArgument(plan.ranks, " ranks with ", plan.shares.size(), " shares of ",
                           plan.lanes, " lanes");
  }
  int32_t at = 0;
  for (const LaneRange& share : plan.shares) {
    if (share.begin != at || share.end <= at || share.end > plan.lanes) {
      return InvalidArgument("share [", share.begin, ", ", share.end,
                             ") does not continue at lane ", at);
    }
    at = share.end;
  }
  if (at != plan.lanes) return InvalidArgument("shares end at lane ", at, " of ", plan.lanes);
  return absl::OkStatus();
}

}  // namespace

v1::Program ToProto(const Program& program) {
  v1::Program proto;
  for (const ParameterSlot& p : program.parameters) {
    v1::ParameterSlot* slot = proto.add_parameters();
    slot->set_name(p.name);
    for (const int64_t d : p.shape) slot->add_dims(d);
    slot->set_offset(p.offset);
    slot->set_init(ToProto(p.init.kind));
    slot->set_init_scale(p.init.scale);
    slot->set_decay(p.decay);
  }
  proto.set_flat_elements(program.flat_elements);
  for (const std::string& s : program.states) proto.add_states(s);
  for (const std::string& s : program.stats) proto.add_stats(s);
  SlotsToProto(program.inputs, proto.mutable_inputs());
  SlotsToProto(program.eval_inputs, proto.mutable_eval_inputs());
  SlotsToProto(program.predict_inputs, proto.mutable_predict_inputs());
  *proto.mutable_train() = SectionToProto(program.train);
  *proto.mutable_update() = SectionToProto(program.update);
  *proto.mutable_evaluate() = SectionToProto(program.evaluate);
  *proto.mutable_predict() = SectionToProto(program.predict);
  if (!program.predict.calls.empty()) *proto.mutable_logits() = OperandToProto(program.logits);
  proto.set_low_copy(program.low_copy);
  if (program.low_copy) *proto.mutable_refresh() = SectionToProto(program.refresh);
  return proto;
}

StatusOr<Program> FromProto(const v1::Program& proto) {
  Program program;
  for (const v1::ParameterSlot& p : proto.parameters()) {
    StatusOr<ParameterSlot> slot = ParameterFromProto(p);
    if (!slot.ok()) return Annotate(slot.status(), absl::StrCat("parameter '", p.name(), "'"));
    program.parameters.push_back(*std::move(slot));
  }
  program.flat_elements = proto.flat_elements();
  program.states.assign(proto.states().begin(), proto.states().end());
  program.stats.assign(proto.stats().begin(), proto.stats().end());
  ASSIGN_OR_RETURN(program.inputs, SlotsFromProto(proto.inputs()));
  ASSIGN_OR_RETURN(program.eval_inputs, SlotsFromProto(proto.eval_inputs()));
  ASSIGN_OR_RETURN(program.predict_inputs, SlotsFromProto(proto.predict_inputs()));
  ASSIGN_OR_RETURN(program.train, SectionFromProto(proto.train()));
  ASSIGN_OR_RETURN(program.update, SectionFromProto(proto.update()));
  ASSIGN_OR_RETURN(program.evaluate, SectionFromProto(proto.evaluate()));
  ASSIGN_OR_RETURN(program.predict, SectionFromProto(proto.predict()));
  if (proto.has_logits()) {
    ASSIGN_OR_RETURN(program.logits, OperandFromProto(proto.logits()));
  }
  program.low_copy = proto.low_copy();
  ASSIGN_OR_RETURN(program.refresh, SectionFromProto(proto.refresh()));
  return program;
}

v1::Numerics ToProto(const Numerics& numerics) {
  v1::Numerics proto;
  proto.set_device(numerics.device);
  proto.set_instruction_set(numerics.instruction_set);
  proto.mutable_libraries()->insert(numerics.libraries.begin(), numerics.libraries.end());
  proto.set_opset_digest(numerics.opset_digest);
  proto.set_processors(numerics.processors);
  return proto;
}

Numerics FromProto(const v1::Numerics& proto) {
  return {proto.device(),
          proto.instruction_set(),
          {proto.libraries().begin(), proto.libraries().end()},
          proto.opset_digest(),
          proto.processors()};
}

v1::Estimate ToProto(const Estimate& e) {
  v1::Estimate proto;
  proto.set_parameter_count(e.parameter_count);
  proto.set_parameter_bytes(e.parameter_bytes);
  proto.set_gradient_bytes(e.gradient_bytes);
  proto.set_state_bytes(e.state_bytes);
  proto.set_arena_bytes(e.arena_bytes);
  proto.set_input_bytes(e.input_bytes);
  proto.set_total_bytes(e.total_bytes);
  proto.set_step_flops(e.step_flops);
  proto.set_wire_bytes(e.wire_bytes);
  proto.set_step_seconds(e.step_seconds);
  proto.set_low_bytes(e.low_bytes);
  return proto;
}

Estimate FromProto(const v1::Estimate& proto) {
  return {proto.parameter_count(), proto.parameter_bytes(), proto.gradient_bytes(),
          proto.state_bytes(),     proto.arena_bytes(),     proto.input_bytes(),
          proto.total_bytes(),     proto.step_flops(),      proto.wire_bytes(),
          proto.step_seconds(),    proto.low_bytes()};
}

StatusOr<ComputePrecision> FromProto(v1::Precision precision) {
  if (precision == v1::PRECISION_UNSPECIFIED) return ComputePrecision::kFp32;
  if (precision < v1::PRECISION_UNSPECIFIED || precision > v1::PRECISION_BF16) {
    return InvalidArgument("there is no precision ", static_cast<int>(precision));
  }
  return static_cast<ComputePrecision>(precision - 1);
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan proto;
  *proto.mutable_program() = ToProto(plan.program);
  *proto.mutable_numerics() = ToProto(plan.numerics);
  proto.set_batch(plan.batch);
  proto.set_lanes(plan.lanes);
  proto.set_ranks(plan.ranks);
  for (const LaneRange& share : plan.shares) *proto.add_shares() = ToProto(share);
  proto.set_eval_batch(plan.eval_batch);
  proto.set_reduce(plan.reduce == ReduceMode::kRing ? v1::REDUCE_MODE_RING
                                                    : v1::REDUCE_MODE_ORDERED);
  *proto.mutable_estimate() = ToProto(plan.estimate);
  proto.set_reason(plan.reason);
  proto.set_precision(PrecisionToProto(plan.precision));
  return proto;
}

StatusOr<Plan> FromProto(const v1::Plan& proto) {
  Plan plan;
  ASSIGN_OR_RETURN(plan.program, FromProto(proto.program()));
  plan.numerics = FromProto(proto.numerics());
  plan.batch = proto.batch();
  plan.lanes = proto.lanes();
  plan.ranks = proto.ranks();
  for (const v1::LaneRange& share : proto.shares()) plan.shares.push_back(FromProto(share));
  RETURN_IF_ERROR(CheckShares(plan));
  plan.eval_batch = proto.eval_batch();
  if (proto.reduce() < v1::REDUCE_MODE_UNSPECIFIED || proto.reduce() > v1::REDUCE_MODE_RING) {
    return InvalidArgument("there is no reduce mode ", static_cast<int>(proto.reduce()));
  }
  plan.reduce = proto.reduce() == v1::REDUCE_MODE_RING ? ReduceMode::kRing : ReduceMode::kOrdered;
  plan.estimate = FromProto(proto.estimate());
  plan.reason = proto.reason();
  ASSIGN_OR_RETURN(plan.precision, FromProto(proto.precision()));
  return plan;
}

}  // namespace weft::wire
