#include "server/plan/estimate.h"

#include <algorithm>
#include <vector>

#include "fabric/mesh/lanes.h"

namespace weft::plan {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kLowBytes = 2;

struct Work {
  int64_t flops = 0;
  double seconds = 0;
};

std::vector<TensorMeta> Metas(const std::vector<Operand>& operands) {
  std::vector<TensorMeta> metas;
  for (const Operand& o : operands) metas.push_back(o.meta);
  return metas;
}

// FLOPs a second of a call.
double RateOf(const Call& call, const Ceilings& ceilings) {
  const bool narrow = std::any_of(call.in.begin(), call.in.end(),
                                  [](const Operand& o) { return o.meta.dtype == DType::kBF16; });
  const double rate = narrow                       ? ceilings.bf16_flops
                      : call.attrs.GetBool("tf32") ? ceilings.tf32_flops
                                                   : ceilings.fp32_flops;
  return rate * ceilings.cores;
}

// One run of a section: each call takes what the slower of arithmetic and memory takes.
StatusOr<Work> WorkOf(const OpSet& ops, const Section& section, const Ceilings& ceilings) {
  Work work;
  for (const Call& call : section.calls) {
    ASSIGN_OR_RETURN(const OpDef* op, ops.Get(call.op));
    const std::vector<TensorMeta> in = Metas(call.in), out = Metas(call.out);
    const int64_t flops = FlopsOf(*op, in, out, call.attrs);
    double bytes = 0;
    for (const TensorMeta& m : in) bytes += static_cast<double>(m.bytes());
    for (const TensorMeta& m : out) bytes += static_cast<double>(m.bytes());
    work.flops += flops;
    work.seconds +=
        ceilings.call_seconds + std::max(static_cast<double>(flops) / RateOf(call, ceilings),
                                         bytes / ceilings.memory_bytes);
  }
  return work;
}

int64_t InputBytes(const Program& program) {
  int64_t bytes = 0;
  for (const auto* inputs : {&program.inputs, &program.eval_inputs, &program.predict_inputs}) {
    int64_t sum = 0;
    for (const InputSlot& slot : *inputs) sum += slot.meta.bytes();
    bytes = std::max(bytes, sum);
  }
  return bytes;
}

}  // namespace

StatusOr<Estimate> EstimatePlan(const OpSet& ops, const Plan& plan, const Ceilings& ceilings) {
  const Program& program = plan.program;
  Estimate e;
  for (const ParameterSlot& slot : program.parameters) e.parameter_count += slot.shape.elements();
  e.parameter_bytes = program.flat_elements * kFloatBytes;
  e.low_bytes = program.low_copy ? program.flat_elements * kLowBytes : 0;
  const bool trains = !program.train.calls.empty();
  int32_t partials = 0, most_lanes = 0;
  for (const LaneRange& share : plan.shares) {
    partials = std::max(partials, PeakPartials(plan.lanes, share));
    most_lanes = std::max(most_lanes, share.size());
  }
  // One more takes the result of the reduction over ranks.
  if (plan.ranks > 1) ++partials;
  e.gradient_bytes = trains ? partials * e.parameter_bytes : 0;
  e.state_bytes = static_cast<int64_t>(program.states.size()) * e.parameter_bytes;
  // Sections run one after the other and share one arena.
  e.arena_bytes = std::max({program.train.arena_bytes, program.update.arena_bytes,
                            program.evaluate.arena_bytes, program.predict.arena_bytes});
  e.input_bytes = InputBytes(program);
  e.total_bytes = e.parameter_bytes + e.low_bytes + e.gradient_bytes + e.state_bytes +
                  e.arena_bytes + e.input_bytes;
  if (!trains) {
    ASSIGN_OR_RETURN(const Work predict, WorkOf(ops, program.predict, ceilings));
    e.step_flops = predict.flops;
    e.step_seconds = predict.seconds;
    return e;
  }
  ASSIGN_OR_RETURN(const Work lane, WorkOf(ops, program.train, ceilings));
  ASSIGN_OR_RETURN(const Work update, WorkOf(ops, program.update, ceilings));
  e.step_flops = lane.flops * plan.lanes + update.flops;
  e.wire_bytes =
      ReduceWireBytes(plan.lanes, plan.shares, plan.reduce,
                      e.parameter_bytes + static_cast<int64_t>(program.stats.size()) * kFloatBytes);
  e.step_seconds = lane.seconds * most_lanes + update.seconds +
                   static_cast<double>(e.wire_bytes) / ceilings.wire_bytes;
  return e;
}

}  // namespace weft::plan
