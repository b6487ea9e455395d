#include "worker/probe.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "nlohmann/json.hpp"

#include "fabric/wire/version.h"
#include "worker/agent/node_facts.h"
#include "worker/core/device/cuda_facts.h"

namespace weft {
namespace {

using nlohmann::json;

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06 ..." -> "580.65.06"; "" without one.
std::string DriverVersion() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string word;
  while (in >> word) {
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return "";
}

json Cuda() {
  const CudaFacts facts = ReadCudaFacts();
  json gpus = json::array();
  for (const GpuDetails& gpu : facts.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"processors", gpu.processors},
                    {"compute_capability", gpu.compute_capability}});
  }
  return {
      {"built", facts.built}, {"driver", DriverVersion()},      {"driver_cuda", facts.driver_cuda},
      {"found", facts.found}, {"built_with", facts.built_with}, {"gpus", std::move(gpus)},
      {"error", facts.error}, {"cupti", facts.cupti},           {"cupti_error", facts.cupti_error}};
}

// What the ranks of a job share: "" or why they cannot.
std::string SharedMemoryError() {
  const int fd = memfd_create("weft-probe", MFD_CLOEXEC);
  if (fd < 0) return std::strerror(errno);
  constexpr off_t kBytes = 1 << 20;
  const bool sized = ftruncate(fd, kBytes) == 0;
  const std::string error = sized ? "" : std::strerror(errno);
  close(fd);
  return error;
}

json Limits() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  struct statvfs shm = {};
  const bool has_shm = statvfs("/dev/shm", &shm) == 0;
  return {{"open_files", static_cast<int64_t>(files.rlim_cur)},
          {"open_files_hard", static_cast<int64_t>(files.rlim_max)},
          {"shared_memory_error", SharedMemoryError()},
          {"shm_free_bytes",
           has_shm ? static_cast<int64_t>(shm.f_bavail) * static_cast<int64_t>(shm.f_frsize) : 0}};
}

}  // namespace

std::string ProbeJson() {
  const agent::NodeFacts node = agent::ReadNodeFacts();
  const json value = {{"version", wire::kVersion},
                      {"cpu",
                       {{"model", node.cpu},
                        {"cores", node.cores},
                        {"memory_bytes", node.memory_bytes},
                        {"instruction_sets", node.instruction_sets}}},
                      {"cuda", Cuda()},
                      {"limits", Limits()}};
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace weft
