#include "worker/core/device/cuda_facts.h"

#ifdef WEFT_CUDA
#include "absl/strings/str_cat.h"
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>

#include "worker/core/device/activity_trace.h"
#endif

namespace weft {

#ifndef WEFT_CUDA

CudaFacts ReadCudaFacts() { return {}; }

#else

namespace {

// 13010 -> "13.1".
std::string CudaVersion(int64_t version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// 22809 -> "2.28.9".
std::string LibraryVersion(int64_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

void ReadGpus(CudaFacts* facts) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    facts->error = cudaGetErrorString(error);
    return;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
      facts->error = absl::StrCat("GPU ", i, ": ", cudaGetErrorString(error));
      return;
    }
    facts->gpus.push_back(
        {.name = properties.name,
         .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
         .processors = properties.multiProcessorCount,
         .compute_capability = absl::StrCat(properties.major, ".", properties.minor)});
  }
}

}  // namespace

CudaFacts ReadCudaFacts() {
  CudaFacts facts;
  facts.built = true;
  int driver = 0, runtime = 0, nccl = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    facts.driver_cuda = CudaVersion(driver);
  }
  cudaRuntimeGetVersion(&runtime);
  ncclGetVersion(&nccl);
  facts.found = {{"cuda runtime", CudaVersion(runtime)},
                 {"cublaslt", LibraryVersion(static_cast<int64_t>(cublasLtGetVersion()))},
                 {"cudnn", LibraryVersion(static_cast<int64_t>(cudnnGetVersion()))},
                 {"nccl", LibraryVersion(nccl)}};
  facts.built_with = {{"cuda runtime", CudaVersion(CUDART_VERSION)},
                      {"cublaslt", LibraryVersion(CUBLAS_VERSION)},
                      {"cudnn", LibraryVersion(CUDNN_VERSION)},
                      {"nccl", LibraryVersion(NCCL_VERSION_CODE)}};
  ReadGpus(&facts);
  if (const auto version = CudaActivityTraceVersion(); version.ok()) {
    facts.cupti = *version;
  } else {
    facts.cupti_error = std::string(version.status().message());
  }
  return facts;
}

#endif  // WEFT_CUDA

}  // namespace weft
