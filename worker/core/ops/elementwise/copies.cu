// Copies, conversions and fills on CUDA. A copy whose operand lies with another dimension innermost
// goes through tiles in shared memory, so that both sides are met in runs.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_copy.cuh"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/elementwise/copies.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::DeviceWalk;
using cuda::StreamOf;
using cuda::ToDevice;

constexpr int kThreads = 256;
constexpr int kEach = 4;      // elements of a conversion that a thread takes at once
constexpr int kUnrolled = 4;  // how often it does
constexpr int kTile = 32;     // rows and columns of a transposed tile

unsigned Blocks(int64_t items, int64_t each) {
  return static_cast<unsigned>(std::max<int64_t>(1, CeilDiv(items, each)));
}

// ---- Copies.

struct CopyState {
  Walk walk;
  int64_t size = 0;
  // Operand 0 is a run along dimension `run`, not along the innermost one.
  bool transposes = false;
  int64_t run = 0, run_step = 0;      // that dimension, and the result's step along it
  int64_t inner = 0, inner_step = 0;  // the innermost one, and the operand's step along it
  Walk others;                        // operand 0 and the result over the other dimensions
};

// Block (tile of `others` x runs x inner): a tile is read along the run and written along inner.
struct Transposition {
  int64_t run, run_step, inner, inner_step, run_tiles, inner_tiles;
};
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    TransposeKernel(const Word* in, Word* out, const Transposition t,
                    __grid_constant__ const DeviceWalk others) {
  __shared__ Word tile[kTile][kTile + 1];
  constexpr int kRows = kThreads / kTile;
  const int64_t block = blockIdx.x;
  const int64_t inner_tile = block % t.inner_tiles, rest = block / t.inner_tiles;
  int64_t offset[2];
  cuda::AllOffsetsOf(others, rest / t.run_tiles, offset);
  const int64_t run = rest % t.run_tiles * kTile, inner = inner_tile * kTile;
  const int lane = threadIdx.x % kTile, row = threadIdx.x / kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kRows) {
    if (run + lane >= t.run || inner + row + i >= t.inner) continue;
    tile[row + i][lane] = in[offset[0] + run + lane + (inner + row + i) * t.inner_step];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kRows) {
    if (inner + lane >= t.inner || run + row + i >= t.run) continue;
    out[offset[1] + (run + row + i) * t.run_step + inner + lane] = tile[lane][row + i];
  }
}

// Looks for a dimension along which operand 0 is a run and that is worth tiles.
void ChooseTransposition(CopyState* s) {
  const Walk& walk = s->walk;
  const int last = walk.rank - 1;
  if (walk.rank < 2 || walk.strides[0][last] == 1 || walk.strides[0][last] == 0) return;
  int run = -1;
  for (int axis = 0; axis < last; ++axis) {
    if (walk.strides[0][axis] == 1) run = axis;
  }
  if (run < 0 || walk.dims[run] < 8 || walk.dims[last] < 8) return;
  s->transposes = true;
  s->run = walk.dims[run];
  s->inner = walk.dims[last];
  s->inner_step = walk.strides[0][last];
  s->others.operands = 2;
  int64_t steps[kMaxRank] = {};
  int64_t step = 1;
  for (int axis = last; axis >= 0; --axis) {
    steps[axis] = step;
    step *= walk.dims[axis];
  }
  s->run_step = steps[run];
  for (int axis = 0; axis < last; ++axis) {
    if (axis == run) continue;
    const int64_t strides[kMaxWalked] = {walk.strides[0][axis], steps[axis]};
    AppendDim(&s->others, walk.dims[axis], strides);
  }
}

Bound BindCopy(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  auto state = std::make_shared<CopyState>();
  state->walk = MakeWalk(args.out[0].shape, args.in, args.in_count);
  state->size = static_cast<int64_t>(SizeOf(args.out[0].dtype));
  ChooseTransposition(state.get());
  return {.state = std::move(state)};
}

template <typename Word>
void LaunchTranspose(const CopyState& s, const KernelArgs& args) {
  const Transposition t = {s.run,
                           s.run_step,
                           s.inner,
                           s.inner_step,
                           CeilDiv(s.run, int64_t{kTile}),
                           CeilDiv(s.inner, int64_t{kTile})};
  const auto blocks = static_cast<unsigned>(s.others.elements * t.run_tiles * t.inner_tiles);
  TransposeKernel<Word><<<blocks, kThreads, 0, StreamOf(args)>>>(
      args.in[0].as<const Word>(), args.out[0].as<Word>(), t, ToDevice(s.others));
}

int LaunchCopy(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const CopyState*>(raw);
  if (s.walk.elements == 0) return 0;
  if (!s.transposes) {
    cuda::LaunchCopy(s.walk, s.size, args.in[0].data, args.out[0].data, StreamOf(args));
  } else if (s.size == 1) {
    LaunchTranspose<uint8_t>(s, args);
  } else if (s.size == 2) {
    LaunchTranspose<uint16_t>(s, args);
  } else if (s.size == 4) {
    LaunchTranspose<uint32_t>(s, args);
  } else {
    LaunchTranspose<uint64_t>(s, args);
  }
  return cuda::LaunchError();
}

// ---- Conversions.

// To nearest, ties to even; float to integer truncates and saturates, NaN gives 0.
template <typename To, typename From>
__device__ __forceinline__ To Convert(From stored) {
  if constexpr (std::is_same_v<To, From>) {
    return stored;
  } else if constexpr (std::is_same_v<From, bf16>) {
    return Convert<To>(__bfloat162float(stored));
  } else if constexpr (std::is_same_v<To, bf16>) {
    if constexpr (std::is_same_v<From, float>) {
      return __float2bfloat16_rn(stored);
    } else {
      return __double2bfloat16(static_cast<double>(stored));
    }
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    if (stored != stored) return To{0};
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (stored <= kLow) return std::numeric_limits<To>::min();
    if (stored >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(stored);
  } else if constexpr (std::is_integral_v<To>) {
    constexpr int64_t kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
    const int64_t x = static_cast<int64_t>(stored);
    return static_cast<To>(x < kLow ? kLow : x > kHigh ? kHigh : x);
  } else {
    return static_cast<To>(stored);
  }
}

// Elements that are moved at once, in one access or two.
template <typename T>
struct alignas(kEach * sizeof(T) < 16 ? kEach * sizeof(T) : 16) Few {
  T value[kEach];
};

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads) CastRunKernel(const From* in, To* out, int64_t n) {
  const int64_t few = n / kEach;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnrolled) + threadIdx.x;
  Few<From> from[kUnrolled];
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < few) from[u] = reinterpret_cast<const Few<From>*>(in)[i];
  }
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const int64_t i = first + u * kThreads;
    if (i >= few) continue;
    Few<To> to;
#pragma unroll
    for (int k = 0; k < kEach; ++k) to.value[k] = Convert<To>(from[u].value[k]);
    reinterpret_cast<Few<To>*>(out)[i] = to;
  }
  const int64_t rest = few * kEach + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && rest < n) out[rest] = Convert<To>(in[rest]);
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    CastKernel(const From* in, To* out, __grid_constant__ const DeviceWalk walk) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnrolled) + threadIdx.x;
  From from[kUnrolled];
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < walk.elements) from[u] = in[cuda::OffsetOf(walk, i)];
  }
#pragma unroll
  for (int u = 0; u < kUnrolled; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < walk.elements) out[i] = Convert<To>(from[u]);
  }
}

template <typename T>
bool FewAreAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Few<T>) == 0;
}

template <typename To, typename From>
void LaunchCastOf(const Walk& walk, const KernelArgs& args) {
  const auto* in = args.in[0].as<const From>();
  auto* out = args.out[0].as<To>();
  if (walk.linear() && FewAreAligned<From>(in) && FewAreAligned<To>(out)) {
    CastRunKernel<To, From>
        <<<Blocks(walk.elements / kEach, kThreads * kUnrolled), kThreads, 0, StreamOf(args)>>>(
            in, out, walk.elements);
    return;
  }
  CastKernel<To, From>
      <<<Blocks(walk.elements, kThreads * kUnrolled), kThreads, 0, StreamOf(args)>>>(
          in, out, ToDevice(walk));
}

Bound BindWalk(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  return {.state = std::make_shared<Walk>(MakeWalk(args.out[0].shape, args.in, args.in_count))};
}

template <typename Body>
void WithType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kBF16:
      return body(bf16{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kInvalid:
      return;
  }
}

int LaunchCast(const void* raw, const KernelArgs& args) {
  const Walk& walk = *static_cast<const Walk*>(raw);
  if (walk.elements == 0) return 0;
  const DType from = args.in[0].dtype, to = args.out[0].dtype;
  if (from == to) {
    cuda::LaunchCopy(walk, static_cast<int64_t>(SizeOf(to)), args.in[0].data, args.out[0].data,
                     StreamOf(args));
    return cuda::LaunchError();
  }
  WithType(from, [&](auto from_zero) {
    WithType(to, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      if constexpr (!std::is_same_v<From, To>) LaunchCastOf<To, From>(walk, args);
    });
  });
  return cuda::LaunchError();
}

// ---- Fills.

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillKernel(T* out, double value, int64_t packs, int64_t n) {
  constexpr int kSize = cuda::Pack<T>::kSize;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const T one = Convert<T>(value);
  cuda::Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kSize; ++i) pack.value[i] = one;
  for (int64_t p = first; p < packs; p += step) cuda::StorePack(out + p * kSize, pack);
  for (int64_t i = packs * kSize + first; i < n; i += step) out[i] = one;
}

Bound BindFill(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  return {.state = std::make_shared<double>(args.attrs->GetFloat("value"))};
}

int LaunchFill(const void* raw, const KernelArgs& args) {
  const int64_t n = args.out[0].elements();
  if (n == 0) return 0;
  const double value = *static_cast<const double*>(raw);
  WithType(args.out[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int64_t kSize = cuda::Pack<T>::kSize;
    T* const out = args.out[0].as<T>();
    const int64_t packs = cuda::IsAligned(out) ? n / kSize : 0;
    FillKernel<T><<<Blocks(n, kThreads * kUnrolled * kSize), kThreads, 0, StreamOf(args)>>>(
        out, value, packs, n);
  });
  return cuda::LaunchError();
}

}  // namespace

void RegisterCopiesCuda(KernelTable* table) {
  table->Add("copy", DeviceKind::kCuda, {nullptr, BindCopy, LaunchCopy, true});
  table->Add("cast", DeviceKind::kCuda, {nullptr, BindWalk, LaunchCast, true});
  table->Add("fill", DeviceKind::kCuda, {nullptr, BindFill, LaunchFill, true});
}

}  // namespace weft
