// Copies between any strides on CUDA: a thread moves the widest words that both sides allow, a few
// of them at once. Only bytes are seen, so that dtypes of one width share a kernel.
#pragma once

#include <cstdint>

#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"

namespace weft::cuda {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopyEach = 4;  // words a thread

// Bytes of a run, a word at a time; both addresses are multiples of a word.
template <typename Word>
__global__ void __launch_bounds__(kCopyThreads)
    CopyRunKernel(const char* in, char* out, int64_t bytes) {
  constexpr int64_t kSize = sizeof(Word);
  const int64_t words = bytes / kSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kCopyThreads * kCopyEach) + threadIdx.x;
  Word word[kCopyEach];
#pragma unroll
  for (int u = 0; u < kCopyEach; ++u) {
    const int64_t i = first + u * kCopyThreads;
    if (i < words) word[u] = reinterpret_cast<const Word*>(in)[i];
  }
#pragma unroll
  for (int u = 0; u < kCopyEach; ++u) {
    const int64_t i = first + u * kCopyThreads;
    if (i < words) reinterpret_cast<Word*>(out)[i] = word[u];
  }
  const int64_t rest = words * kSize + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && rest < bytes) out[rest] = in[rest];
}

// The walk counts words; its strides are in elements of `size` bytes. Operand 0 is read; operand 1,
// if there is one, says where words go, else they follow each other.
template <typename Word, int kOperands>
__global__ void __launch_bounds__(kCopyThreads)
    CopyKernel(const char* in, char* out, int64_t size, __grid_constant__ const DeviceWalk walk) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kCopyThreads * kCopyEach) + threadIdx.x;
  Word word[kCopyEach];
  int64_t to[kCopyEach];
#pragma unroll
  for (int u = 0; u < kCopyEach; ++u) {
    const int64_t i = first + u * kCopyThreads;
    if (i >= walk.elements) continue;
    int64_t offset[kOperands];
    AllOffsetsOf(walk, i, offset);
    word[u] = *reinterpret_cast<const Word*>(in + offset[0] * size);
    to[u] = kOperands > 1 ? offset[kOperands - 1] * size : i * static_cast<int64_t>(sizeof(Word));
  }
#pragma unroll
  for (int u = 0; u < kCopyEach; ++u) {
    if (first + u * kCopyThreads < walk.elements) *reinterpret_cast<Word*>(out + to[u]) = word[u];
  }
}

template <typename Word>
void LaunchCopyWords(const Walk& walk, int64_t size, const char* in, char* out,
                     cudaStream_t stream) {
  const DeviceWalk words = ToDevice(InUnitsOf(walk, static_cast<int64_t>(sizeof(Word)) / size));
  const auto blocks =
      static_cast<unsigned>(CeilDiv(words.elements, int64_t{kCopyThreads} * kCopyEach));
  if (walk.operands == 1) {
    CopyKernel<Word, 1><<<blocks, kCopyThreads, 0, stream>>>(in, out, size, words);
  } else {
    CopyKernel<Word, 2><<<blocks, kCopyThreads, 0, stream>>>(in, out, size, words);
  }
}

// Copies the walk's elements, of `size` bytes each, from operand 0 to operand 1, or to a run where
// there is but one operand.
inline void LaunchCopy(const Walk& walk, int64_t size, const void* from, void* to,
                       cudaStream_t stream) {
  if (walk.elements == 0) return;
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
  if (walk.linear() && IsAligned(in) && IsAligned(out)) {
    const int64_t bytes = walk.elements * size;
    const int64_t words = bytes < 16 ? 1 : bytes / 16;
    const auto blocks = static_cast<unsigned>(CeilDiv(words, int64_t{kCopyThreads} * kCopyEach));
    CopyRunKernel<uint4><<<blocks, kCopyThreads, 0, stream>>>(in, out, bytes);
    return;
  }
  int64_t bytes = 16;
  for (; bytes > size; bytes /= 2) {
    bool whole =
        ((reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) & (bytes - 1)) == 0;
    for (int i = 0; i < walk.operands; ++i) whole = whole && InWholeUnits(walk, i, bytes / size);
    if (whole) break;
  }
  switch (bytes) {
    case 1:
      return LaunchCopyWords<uint8_t>(walk, size, in, out, stream);
    case 2:
      return LaunchCopyWords<uint16_t>(walk, size, in, out, stream);
    case 4:
      return LaunchCopyWords<uint32_t>(walk, size, in, out, stream);
    case 8:
      return LaunchCopyWords<uint64_t>(walk, size, in, out, stream);
    default:
      return LaunchCopyWords<uint4>(walk, size, in, out, stream);
  }
}

}  // namespace weft::cuda
