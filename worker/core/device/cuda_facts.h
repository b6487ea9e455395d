// What this machine has of CUDA, for people: `weft doctor` and `weft-worker probe`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft {

struct GpuDetails {
  std::string name;
  int64_t memory_bytes = 0;
  int32_t processors = 0;
  std::string compute_capability;  // "9.0"
};

struct CudaFacts {
  bool built = false;       // this build has CUDA; else nothing below is set
  std::string driver_cuda;  // newest CUDA that the driver knows, "13.0"; empty: no driver
  std::map<std::string, std::string> found;       // library -> version
  std::map<std::string, std::string> built_with;  // the same libraries
  std::vector<GpuDetails> gpus;
  std::string error;        // why there are no GPUs
  std::string cupti;        // version; empty: cannot be used
  std::string cupti_error;  // why not, and what to do
};

// Makes no context.
CudaFacts ReadCudaFacts();

}  // namespace weft
