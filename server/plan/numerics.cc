#include "server/plan/numerics.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "fabric/base/device_id.h"
#include "fabric/wire/convert_plan.h"

namespace weft::plan {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";

using Libraries = std::map<std::string, std::string>;

bool Has(const WorkerOffer& worker, const std::string& instruction_set) {
  const auto& sets = worker.instruction_sets;
  return std::find(sets.begin(), sets.end(), instruction_set) != sets.end();
}

std::string ListOf(const Libraries& libraries) {
  return absl::StrJoin(libraries, ", ", absl::PairFormatter(" "));
}

Status CheckLibraries(const WorkerOffer& worker, const Libraries& has, const Libraries& wanted) {
  if (has == wanted) return absl::OkStatus();
  return CannotRun(worker, absl::StrCat("has libraries (", ListOf(has),
                                        "), the job's bits are of (", ListOf(wanted), ")"));
}

Status CheckGpu(const WorkerOffer& worker, const Numerics& numerics) {
  const GpuOffer& gpu = worker.gpu;
  if (gpu.count == 0) {
    return CannotRun(worker,
                     absl::StrCat("has no GPU, the job's bits are of '", numerics.device, "'"));
  }
  if (gpu.model != numerics.device) {
    return CannotRun(worker, absl::StrCat("has device '", gpu.model, "', the job's bits are of '",
                                          numerics.device, "'"));
  }
  if (gpu.processors != numerics.processors) {
    return CannotRun(
        worker, absl::StrCat("has GPUs of ", gpu.processors, " processors, the job's bits are of ",
                             numerics.processors));
  }
  return CheckLibraries(worker, gpu.libraries, numerics.libraries);
}

// Whether the worker can compute what `numerics` says, bit for bit.
Status CanHonour(const WorkerOffer& worker, const Numerics& numerics) {
  if (worker.opset_digest != numerics.opset_digest) {
    return CannotRun(
        worker, "has other ops than this job was planned with; run the same version everywhere");
  }
  if (OnGpu(numerics)) return CheckGpu(worker, numerics);
  RETURN_IF_ERROR(CheckLibraries(worker, worker.libraries, numerics.libraries));
  if (!numerics.instruction_set.empty() && !Has(worker, numerics.instruction_set)) {
    return CannotRun(worker, absl::StrCat("lacks ", numerics.instruction_set,
                                          ", which the job's bits are of; it has ",
                                          absl::StrJoin(worker.instruction_sets, ", ")));
  }
  return absl::OkStatus();
}

// The job's instruction set, or the best that all workers have.
StatusOr<std::string> ChooseInstructionSet(const std::string& wanted,
                                           const std::vector<WorkerOffer>& workers) {
  if (!wanted.empty() || workers.empty()) {
    for (const WorkerOffer& worker : workers) {
      if (!Has(worker, wanted)) {
        return CannotRun(worker, absl::StrCat("lacks instruction_set ", wanted, "; it has ",
                                              absl::StrJoin(worker.instruction_sets, ", ")));
      }
    }
    return wanted;
  }
  for (const std::string& set : workers[0].instruction_sets) {
    if (std::all_of(workers.begin(), workers.end(),
                    [&set](const WorkerOffer& w) { return Has(w, set); })) {
      return set;
    }
  }
  return FailedPrecondition("the workers have no instruction set in common");
}

// The first worker without a GPU; null: all have one.
const WorkerOffer* WithoutGpu(const std::vector<WorkerOffer>& workers) {
  for (const WorkerOffer& worker : workers) {
    if (worker.gpu.count == 0) return &worker;
  }
  return nullptr;
}

// Where the job runs: where it asks to, or on GPUs where all workers have them. Sampling is the
// CPU's.
StatusOr<DeviceKind> ChooseDevice(const v1::JobSpec& spec,
                                  const std::vector<WorkerOffer>& workers) {
  ASSIGN_OR_RETURN(const ComputePrecision precision, wire::FromProto(spec.train().precision()));
  const bool narrow = precision != ComputePrecision::kFp32;
  if (spec.has_sample()) return DeviceKind::kCpu;
  const WorkerOffer* bare = WithoutGpu(workers);
  // An instruction set is a CPU's, so to name one is to ask for the CPU.
  const bool asks_cpu =
      spec.device() == kCpu || (spec.device().empty() && !spec.instruction_set().empty());
  if (asks_cpu) {
    if (!narrow) return DeviceKind::kCpu;
    return InvalidArgument("train.precision: ", NameOf(precision),
                           " runs on GPUs only, and the job asks for a CPU by its ",
                           spec.device().empty() ? "instruction_set" : "device",
                           "; set precision: fp32, or device: cuda");
  }
  if (spec.device() == kCuda) {
    if (bare == nullptr) return DeviceKind::kCuda;
    return CannotRun(*bare,
                     "has no GPU, and the job asks for device cuda; leave device out to run "
                     "on the CPU, or start workers on nodes with GPUs");
  }
  if (narrow && bare != nullptr) {
    return CannotRun(*bare, absl::StrCat("has no GPU, and train.precision ", NameOf(precision),
                                         " runs on GPUs only; set precision: fp32, or start "
                                         "workers on nodes with GPUs"));
  }
  // With nobody there a job that only a GPU can run is planned for one.
  const bool on_gpu = workers.empty() ? narrow : bare == nullptr;
  return on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu;
}

StatusOr<Numerics> Decide(const OpSet& ops, const v1::JobSpec& spec,
                          const std::vector<WorkerOffer>& workers) {
  Numerics numerics;
  numerics.opset_digest = ops.Digest();
  ASSIGN_OR_RETURN(const DeviceKind device, ChooseDevice(spec, workers));
  if (device == DeviceKind::kCuda) {
    numerics.device = kCuda;
    if (workers.empty()) return numerics;
    const GpuOffer& gpu = workers[0].gpu;
    numerics.device = gpu.model;
    numerics.processors = gpu.processors;
    numerics.libraries = gpu.libraries;
  } else {
    numerics.device = kCpu;
    if (!workers.empty()) numerics.libraries = workers[0].libraries;
    ASSIGN_OR_RETURN(numerics.instruction_set,
                     ChooseInstructionSet(spec.instruction_set(), workers));
  }
  for (const WorkerOffer& worker : workers) RETURN_IF_ERROR(CanHonour(worker, numerics));
  return numerics;
}

// Whether `kept` may be kept: the job asks for nothing else, and all workers can honour it.
Status CanKeep(const OpSet& ops, const v1::JobSpec& spec, const std::vector<WorkerOffer>& workers,
               const Numerics& kept) {
  if (kept.opset_digest != ops.Digest()) {
    return FailedPrecondition(
        "the job was planned with other ops; this version cannot give it the same bits");
  }
  if (!spec.device().empty() && (spec.device() == kCuda) != OnGpu(kept)) {
    return FailedPrecondition("device: the job asks for ", spec.device(),
                              ", its earlier steps were computed on ", kept.device);
  }
  if (!spec.instruction_set().empty() && spec.instruction_set() != kept.instruction_set) {
    return FailedPrecondition("instruction_set: the job asks for ", spec.instruction_set(),
                              ", its earlier steps were computed with ",
                              OnGpu(kept) ? kept.device : kept.instruction_set);
  }
  for (const WorkerOffer& worker : workers) RETURN_IF_ERROR(CanHonour(worker, kept));
  return absl::OkStatus();
}

}  // namespace

Status CannotRun(const WorkerOffer& worker, const std::string& why) {
  return FailedPrecondition("worker ", worker.worker, " ", why);
}

StatusOr<Numerics> ChooseNumerics(const OpSet& ops, const v1::JobSpec& spec,
                                  const std::vector<WorkerOffer>& workers, const Numerics* kept) {
  if (kept == nullptr) return Decide(ops, spec, workers);
  const Status keeps = CanKeep(ops, spec, workers, *kept);
  if (keeps.ok()) return *kept;
  if (spec.determinism() == v1::DETERMINISM_FAST) return Decide(ops, spec, workers);
  return keeps;
}

}  // namespace weft::plan
