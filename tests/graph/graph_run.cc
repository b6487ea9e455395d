#include "tests/graph/graph_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "fabric/base/hash.h"
#include "tests/support/seeded.h"
#include "worker/core/device/cpu_device.h"
#include "worker/exec/bound_section.h"

namespace weft::testing {
namespace {

struct Runner {
  std::unique_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<TileRunner> tiles = MakeThreadPool(1);
  BoundSection section;
  RankMemory memory;
};

StatusOr<Runner> Prepare(const Program& program, const Section& section) {
  Runner runner;
  ASSIGN_OR_RETURN(runner.section,
                   BoundSection::Bind(section, BuiltinKernels(), DeviceKind::kCpu, 1));
  ASSIGN_OR_RETURN(runner.memory,
                   RankMemory::Allocate(runner.device.get(), program,
                                        {.scratch_bytes = runner.section.scratch_bytes()}));
  for (const ParameterSlot& slot : program.parameters) {
    const std::vector<float> value = SeededValue(slot.name, slot.shape.elements());
    std::copy(value.begin(), value.end(), runner.memory.param() + slot.offset);
  }
  return runner;
}

Launcher LauncherOf(const Runner& runner) {
  Launcher launcher;
  launcher.tiles = runner.tiles.get();
  launcher.scratch = runner.memory.scratch();
  return launcher;
}

void LoadInputs(const std::vector<InputSlot>& slots, int64_t vocab, const SpaceBases& bases) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::vector<int32_t> ids = SeededInputIds(slots[i].name, slots[i].meta.elements(), vocab);
    std::memcpy(bases.inputs[i], ids.data(), ids.size() * sizeof(int32_t));
  }
}

}  // namespace

std::vector<float> SeededValue(const std::string& name, int64_t elements) {
  return SeededFloats(StableHash(name), elements, -0.7, 0.7);
}

std::vector<int32_t> SeededInputIds(const std::string& name, int64_t elements, int64_t limit) {
  std::vector<int32_t> ids = SeededIds(StableHash(name), elements, limit);
  for (size_t i = 0; name == "targets" && i < ids.size(); i += 7) ids[i] = -1;
  return ids;
}

StatusOr<Named> RunEagerly(Core& core, const Graph& graph, int64_t vocab) {
  EagerEmitter& e = core.emitter();
  Values now(graph.values.size());
  for (const GraphParameter& p : graph.parameters) {
    const TensorMeta& meta = graph.values[p.value];
    now[p.value] = e.Make<float>(meta.shape, SeededValue(p.name, meta.elements()));
  }
  for (const GraphInput& i : graph.inputs) {
    const TensorMeta& meta = graph.values[i.value];
    now[i.value] = meta.dtype == DType::kI32
                       ? e.Make<int32_t>(meta.shape, SeededInputIds(i.name, meta.elements(), vocab))
                       : e.Make<float>(meta.shape, SeededValue(i.name, meta.elements()));
  }
  for (const GraphNode& node : graph.nodes) {
    Values in;
    for (ValueId v : node.in) in.push_back(now[v]);
    const Values out = e.EmitAll(node.op, in, node.attrs);
    RETURN_IF_ERROR(Annotate(e.status(), node.name));
    for (size_t i = 0; i < node.out.size(); ++i) now[node.out[i]] = out[i];
  }
  Named results;
  for (const GraphOutput& o : graph.outputs) {
    const Value dense = e.Emit("copy", {now[o.value]});
    ASSIGN_OR_RETURN(results[o.name], ToVector<float>(dense));
  }
  RETURN_IF_ERROR(e.status());
  return results;
}

StatusOr<TrainResult> RunTrain(const Program& program, int64_t vocab) {
  ASSIGN_OR_RETURN(Runner runner, Prepare(program, program.train));
  const SpaceBases bases = runner.memory.Bases(0, RankMemory::Slots::kTrain);
  LoadInputs(program.inputs, vocab, bases);
  RETURN_IF_ERROR(runner.section.Run(bases, LauncherOf(runner), {}));
  TrainResult result;
  const float* stats = static_cast<const float*>(bases.stats);
  result.stats.assign(stats, stats + program.stats.size());
  const float* grad = static_cast<const float*>(bases.grad);
  for (const ParameterSlot& slot : program.parameters) {
    result.gradients[slot.name].assign(grad + slot.offset,
                                       grad + slot.offset + slot.shape.elements());
  }
  return result;
}

StatusOr<std::vector<float>> RunPredict(const Program& program, int64_t vocab) {
  ASSIGN_OR_RETURN(Runner runner, Prepare(program, program.predict));
  const SpaceBases bases = runner.memory.Bases(0, RankMemory::Slots::kPredict);
  LoadInputs(program.predict_inputs, vocab, bases);
  RETURN_IF_ERROR(runner.section.Run(bases, LauncherOf(runner), {}));
  const float* logits =
      reinterpret_cast<const float*>(static_cast<const char*>(bases.arena) + program.logits.offset);
  return std::vector<float>(logits, logits + program.logits.meta.elements());
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]) / std::max(1.0, std::abs(double{b[i]}));
    if (!(difference <= largest))
      largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return largest;
}

}  // namespace weft::testing
