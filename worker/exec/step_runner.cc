#include "worker/exec/step_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fabric/base/hash.h"
#include "worker/exec/bound_section.h"
#include "worker/exec/cpu_step_runner.h"
#include "worker/exec/device_step_runner.h"

namespace weft {

StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const StepParts& parts) {
  return parts.device->id().kind == DeviceKind::kCpu ? MakeCpuStepRunner(parts)
                                                     : MakeDeviceStepRunner(parts);
}

Status InitializeParameters(const Program& program, uint64_t seed, const KernelTable& kernels,
                            TileRunner* tiles, float* flat) {
  std::fill_n(flat, program.flat_elements, 0.0f);
  for (const ParameterSlot& p : program.parameters) {
    const int64_t elements = p.shape.elements();
    float* data = flat + p.offset;
    if (p.init.kind == InitRule::Kind::kOnes) std::fill_n(data, elements, 1.0f);
    if (p.init.kind != InitRule::Kind::kNormal && p.init.kind != InitRule::Kind::kUniform) continue;
    const bool normal = p.init.kind == InitRule::Kind::kNormal;
    const TensorMeta meta{DType::kF32, {elements}};
    Call call;
    call.op = normal ? "normal" : "uniform";
    call.node = p.name;
    call.out = {{Space::kParam, 0, 0, meta, ContiguousStrides(meta.shape)}};
    // The key is what makes draws of two parameters differ; the sign bit has no place in an
    // attribute.
    const int64_t key = static_cast<int64_t>(StableHash(p.name) >> 1);
    call.attrs =
        normal
            ? Attrs{{"shape", std::vector<int64_t>{elements}}, {"std", p.init.scale}, {"key", key}}
            : Attrs{{"shape", std::vector<int64_t>{elements}},
                    {"low", -p.init.scale},
                    {"high", p.init.scale},
                    {"key", key}};
    ASSIGN_OR_RETURN(BoundSection section,
                     BoundSection::Bind({{call}, 0}, kernels, DeviceKind::kCpu, tiles->threads()));
    constexpr size_t kAlign = 64;
    size_t room = static_cast<size_t>(section.scratch_bytes()) + kAlign;
    std::vector<char> scratch(room);
    void* aligned = scratch.data();
    std::align(kAlign, room - kAlign, aligned, room);
    Launcher launcher;
    launcher.tiles = tiles;
    launcher.scratch = aligned;
    SpaceBases bases;
    bases.param = data;
    RETURN_IF_ERROR(section.Run(bases, launcher, {seed, 0, 0}));
  }
  return absl::OkStatus();
}

}  // namespace weft
