// Thread block clusters: blocks that run side by side and may read each other's shared memory.
// Devices before Hopper have none; kernels for them are compiled without.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "worker/core/ops/cuda_kernel.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define WEFT_CUDA_CLUSTERS 1
#else
#define WEFT_CUDA_CLUSTERS 0
#endif

namespace weft::cuda {

// As many blocks as every device with clusters takes.
inline constexpr int kMostCluster = 8;

// Of the current device.
inline bool HasClusters() {
  int device = 0, has = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has != 0;
}

// Launches `kernel` with clusters of `cluster` blocks along the grid's y, which is a multiple of
// it. An error stays the runtime's last one.
template <typename... Parameters, typename... Args>
void LaunchClusters(void (*kernel)(Parameters...), dim3 grid, int threads, int cluster,
                    cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace weft::cuda
