// Elementwise functions on CUDA, each compiled for itself where operands are runs of memory.
//   Linear: a thread takes a few times 16 bytes of every operand, all asked for before the first is
//     used.
//   Packs: the same where an operand's innermost dimension is a run or one element repeated (rows,
//     columns and scalars that broadcast; windows): offsets are found once a pack.
//   Strided: anything else, a few elements a thread, the function chosen at run time.
// Every way computes an element by the same expression.
#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/elementwise/copies.h"
#include "worker/core/ops/elementwise/state.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::CeilDiv;
using cuda::ComputeType;
using cuda::DeviceWalk;
using cuda::Pack;
using cuda::StreamOf;
using cuda::ToDevice;
using F = ElementwiseFunction;

constexpr int kThreads = 256;
constexpr int kStridedEach = 4;  // elements a thread of the strided kernel

constexpr int OperandsOf(F function) {
  switch (function) {
    case F::kAdd:
    case F::kSub:
    case F::kMul:
    case F::kDiv:
    case F::kMaximum:
    case F::kGreater:
    case F::kGeluGrad:
      return 2;
    case F::kWhere:
      return 3;
    default:
      return 1;
  }
}

constexpr double kGeluSlope = 1.5957691216057308;  // 2 sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

// Results in bf16 keep 8 bits: there the functions that a kernel's speed hangs on are the
// processor's own, good to about 20 bits.
template <typename T, typename C>
__device__ __forceinline__ C Sigmoid(C x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  } else {
    return C{1} / (C{1} + exp(-x));
  }
}

// x/2 (1 + tanh u) = x sigmoid(2 u).
template <typename T, typename C>
__device__ __forceinline__ C Gelu(C x) {
  return x * Sigmoid<T>(x * (x * x * C(kGeluSlope * kGeluCube) + C(kGeluSlope)));
}

template <typename T, typename C>
__device__ __forceinline__ C GeluSlope(C x) {
  // The slope is 0 or 1 further out; the limit keeps 0 * infinity away.
  const C limit = sizeof(C) == 4 ? C{12} : C{32};
  if (x > limit) x = limit;
  if (x < -limit) x = -limit;
  const C square = x * x;
  const C s = Sigmoid<T>(x * (square * C(kGeluSlope * kGeluCube) + C(kGeluSlope)));
  const C du = square * C(3 * kGeluSlope * kGeluCube) + C(kGeluSlope);
  return s + x * du * s * (C{1} - s);
}

struct Constants {
  double first, second;
};

// Calls body(f), f(a, b, c) the function of one element of type T, in C; operands that it does not
// have are ignored.
template <typename T, typename Body>
__device__ __forceinline__ void WithFunction(F function, Constants constants, Body&& body) {
  using C = ComputeType<T>;
  const C first = C(constants.first), second = C(constants.second);
  switch (function) {
    case F::kAdd:
      return body([](C a, C b, C) { return a + b; });
    case F::kSub:
      return body([](C a, C b, C) { return a - b; });
    case F::kMul:
      return body([](C a, C b, C) { return a * b; });
    case F::kDiv:
      return body([](C a, C b, C) { return a / b; });
    case F::kMaximum:
      return body([](C a, C b, C) { return a > b || a != a ? a : b; });
    case F::kGreater:
      return body([](C a, C b, C) { return a > b ? C{1} : C{0}; });
    case F::kWhere:
      return body([](C a, C b, C c) { return a != C{0} ? b : c; });
    case F::kNeg:
      return body([](C a, C, C) { return -a; });
    case F::kExp:
      return body([](C a, C, C) { return exp(a); });
    case F::kLog:
      return body([](C a, C, C) { return log(a); });
    case F::kSqrt:
      return body([](C a, C, C) { return sqrt(a); });
    case F::kRsqrt:
      return body([](C a, C, C) { return C{1} / sqrt(a); });
    case F::kTanh:
      return body([](C a, C, C) { return tanh(a); });
    case F::kSigmoid:
      return body([](C a, C, C) { return Sigmoid<T>(a); });
    case F::kRelu:
      return body([](C a, C, C) { return a < C{0} ? C{0} : a; });
    case F::kSquare:
      return body([](C a, C, C) { return a * a; });
    case F::kGelu:
      return body([](C a, C, C) { return Gelu<T>(a); });
    case F::kGeluGrad:
      return body([](C a, C b, C) { return GeluSlope<T>(a) * b; });
    case F::kScale:
      return body([first](C a, C, C) { return a * first; });
    case F::kShift:
      return body([first](C a, C, C) { return a + first; });
    case F::kClamp:
      return body([first, second](C a, C, C) {
        a = a < first ? first : a;
        return a > second ? second : a;
      });
  }
}

struct Operands {
  const void* in[kMaxWalked];
  void* out;

  template <typename T>
  __device__ const T* at(int k) const {
    return static_cast<const T*>(in[k]);
  }
};

// Of operand k among `count`: unused ones repeat the first, which costs nothing.
constexpr int Slot(int k, int count) { return k < count ? k : 0; }

// f of pack `u` of each operand.
template <typename T, int kOperands, int kEach, typename Function>
__device__ __forceinline__ Pack<T> Apply(Function f, const Pack<T> (&value)[kOperands][kEach],
                                         int u) {
  Pack<T> result;
#pragma unroll
  for (int i = 0; i < Pack<T>::kSize; ++i) {
    result.value[i] = cuda::Round<T>(f(cuda::Load(value[0][u].value[i]),
                                       cuda::Load(value[Slot(1, kOperands)][u].value[i]),
                                       cuda::Load(value[Slot(2, kOperands)][u].value[i])));
  }
  return result;
}

template <F kFunction, typename T>
__global__ void __launch_bounds__(kThreads)
    LinearKernel(const Operands operands, const Constants constants, int64_t n) {
  constexpr int kSize = Pack<T>::kSize, kOperands = OperandsOf(kFunction);
  constexpr int kEach = kOperands == 1 ? 4 : 2;
  const int64_t packs = n / kSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  T* const out = static_cast<T*>(operands.out);
  Pack<T> value[kOperands][kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t p = first + u * kThreads;
    if (p >= packs) continue;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      value[k][u] = cuda::LoadPack(operands.at<T>(k) + p * kSize);
    }
  }
  WithFunction<T>(kFunction, constants, [&](auto f) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int64_t p = first + u * kThreads;
      if (p < packs) cuda::StorePack(out + p * kSize, Apply<T>(f, value, u));
    }
    // What is left is less than a pack.
    const int64_t i = packs * kSize + threadIdx.x;
    if (blockIdx.x != gridDim.x - 1 || i >= n) return;
    out[i] = cuda::Round<T>(f(cuda::Load(operands.at<T>(0)[i]),
                              cuda::Load(operands.at<T>(Slot(1, kOperands))[i]),
                              cuda::Load(operands.at<T>(Slot(2, kOperands))[i])));
  });
}

// The walk counts packs. Bit k of `runs`: operand k's innermost dimension is a run; else it is one
// element, repeated. `n`: elements; more than whole packs only where there is one dimension.
template <F kFunction, typename T>
__global__ void __launch_bounds__(kThreads)
    PackKernel(const Operands operands, const Constants constants,
               __grid_constant__ const DeviceWalk walk, unsigned runs, int64_t n) {
  constexpr int kSize = Pack<T>::kSize, kOperands = OperandsOf(kFunction);
  constexpr int kEach = 2;
  const auto packs = static_cast<uint32_t>(walk.elements);
  const uint32_t first = blockIdx.x * (kThreads * kEach) + threadIdx.x;
  T* const out = static_cast<T*>(operands.out);
  Pack<T> value[kOperands][kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const uint32_t p = first + u * kThreads;
    if (p >= packs) continue;
    int64_t offset[kOperands];
    cuda::OffsetsOf<uint32_t>(walk, p, offset);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) {
      const T* const from = operands.at<T>(k) + offset[k];
      if ((runs >> k & 1) != 0) {
        value[k][u] = cuda::LoadPack(from);
      } else {
        value[k][u].value[0] = *from;
      }
    }
  }
  // Repeated only now, so that no load waits for another.
#pragma unroll
  for (int k = 0; k < kOperands; ++k) {
    if ((runs >> k & 1) != 0) continue;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
#pragma unroll
      for (int i = 1; i < kSize; ++i) value[k][u].value[i] = value[k][u].value[0];
    }
  }
  WithFunction<T>(kFunction, constants, [&](auto f) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const uint32_t p = first + u * kThreads;
      if (p >= packs) continue;
      cuda::StorePack(out + static_cast<int64_t>(p) * kSize, Apply<T>(f, value, u));
    }
    const int64_t i = static_cast<int64_t>(packs) * kSize + threadIdx.x;
    if (blockIdx.x != gridDim.x - 1 || i >= n) return;
    const auto one = [&](int k) {
      return cuda::Load(operands.at<T>(k)[(runs >> k & 1) != 0 ? i : 0]);
    };
    out[i] = cuda::Round<T>(f(one(0), one(Slot(1, kOperands)), one(Slot(2, kOperands))));
  });
}

template <typename T, int kOperands>
__global__ void __launch_bounds__(kThreads)
    StridedKernel(F function, const Operands operands, const Constants constants,
                  __grid_constant__ const DeviceWalk walk) {
  using C = ComputeType<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kStridedEach) + threadIdx.x;
  C value[kOperands][kStridedEach];
#pragma unroll
  for (int u = 0; u < kStridedEach; ++u) {
    const int64_t i = first + u * kThreads;
    if (i >= walk.elements) continue;
    int64_t offset[kOperands];
    cuda::AllOffsetsOf(walk, i, offset);
#pragma unroll
    for (int k = 0; k < kOperands; ++k) value[k][u] = cuda::Load(operands.at<T>(k)[offset[k]]);
  }
  WithFunction<T>(function, constants, [&](auto f) {
#pragma unroll
    for (int u = 0; u < kStridedEach; ++u) {
      const int64_t i = first + u * kThreads;
      if (i >= walk.elements) continue;
      static_cast<T*>(operands.out)[i] = cuda::Round<T>(
          f(value[0][u], value[Slot(1, kOperands)][u], value[Slot(2, kOperands)][u]));
    }
  });
}

unsigned Blocks(int64_t items, int64_t each) {
  return static_cast<unsigned>(std::max<int64_t>(1, CeilDiv(items, each)));
}

// Whether PackKernel can take the operands: a bit an operand whose innermost dimension is a run, or
// ~0u.
template <typename T>
unsigned RunsOf(const Walk& walk, const Operands& operands) {
  constexpr int64_t kSize = Pack<T>::kSize;
  if (walk.rank == 0 || walk.elements / kSize >= cuda::kMost32 || !cuda::IsAligned(operands.out) ||
      (walk.rank > 1 && walk.inner() % kSize != 0)) {
    return ~0u;
  }
  unsigned runs = 0;
  for (int k = 0; k < walk.operands; ++k) {
    if (walk.inner_stride(k) == 0) continue;
    const bool packs = walk.inner_stride(k) == 1 && cuda::IsAligned(operands.in[k]) &&
                       (walk.rank == 1 || cuda::InWholeUnits(walk, k, kSize));
    if (!packs) return ~0u;
    runs |= 1u << k;
  }
  return runs;
}

template <F kFunction, typename T>
void LaunchOf(const ElementwiseState& s, const Operands& operands, cudaStream_t stream) {
  constexpr int64_t kSize = Pack<T>::kSize;
  constexpr int kOperands = OperandsOf(kFunction);
  const Constants constants = {s.first, s.second};
  bool aligned = cuda::IsAligned(operands.out);
  for (int k = 0; k < kOperands; ++k) aligned = aligned && cuda::IsAligned(operands.in[k]);
  if (s.walk.linear() && aligned) {
    constexpr int64_t kEach = kThreads * (kOperands == 1 ? 4 : 2);
    LinearKernel<kFunction, T><<<Blocks(s.walk.elements / kSize, kEach), kThreads, 0, stream>>>(
        operands, constants, s.walk.elements);
    return;
  }
  // Doubles are few; their rows need no kernels of their own.
  if constexpr (!std::is_same_v<T, double>) {
    const unsigned runs = RunsOf<T>(s.walk, operands);
    if (runs != ~0u) {
      const DeviceWalk walk = ToDevice(cuda::InUnitsOf(s.walk, kSize));
      PackKernel<kFunction, T><<<Blocks(walk.elements, kThreads * 2), kThreads, 0, stream>>>(
          operands, constants, walk, runs, s.walk.elements);
      return;
    }
  }
  StridedKernel<T, kOperands>
      <<<Blocks(s.walk.elements, kThreads * kStridedEach), kThreads, 0, stream>>>(
          kFunction, operands, constants, ToDevice(s.walk));
}

template <F kFunction>
int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const ElementwiseState*>(raw);
  if (s.walk.elements == 0) return 0;
  Operands operands = {};
  for (int i = 0; i < args.in_count; ++i) operands.in[i] = args.in[i].data;
  operands.out = args.out[0].data;
  return cuda::ForFloat(s.dtype, [&](auto zero) {
    LaunchOf<kFunction, decltype(zero)>(s, operands, StreamOf(args));
    return cuda::LaunchError();
  });
}

// How each op is run: its function, and the attributes that are its constants.
struct Row {
  const char* op;
  F function;
  const char* first = nullptr;
  const char* second = nullptr;
};
constexpr Row kRows[] = {
    {"add", F::kAdd},
    {"sub", F::kSub},
    {"mul", F::kMul},
    {"div", F::kDiv},
    {"maximum", F::kMaximum},
    {"greater", F::kGreater},
    {"where", F::kWhere},
    {"neg", F::kNeg},
    {"exp", F::kExp},
    {"log", F::kLog},
    {"sqrt", F::kSqrt},
    {"rsqrt", F::kRsqrt},
    {"tanh", F::kTanh},
    {"sigmoid", F::kSigmoid},
    {"relu", F::kRelu},
    {"square", F::kSquare},
    {"gelu", F::kGelu},
    {"gelu_grad", F::kGeluGrad},
    {"scale", F::kScale, "factor"},
    {"shift", F::kShift, "amount"},
    {"clamp", F::kClamp, "min", "max"},
    {"scale_by", F::kMul},
};

template <int kRow>
Bound BindRow(const std::string&, const BindArgs& args) {
  constexpr const Row& row = kRows[kRow];
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  auto state = std::make_shared<ElementwiseState>();
  state->function = row.function;
  state->dtype = args.out[0].dtype;
  state->walk = MakeWalk(args.out[0].shape, args.in, args.in_count);
  if (row.first != nullptr) state->first = args.attrs->GetFloat(row.first);
  if (row.second != nullptr) state->second = args.attrs->GetFloat(row.second);
  return {.state = std::move(state)};
}

template <int kRow>
void RegisterFrom(KernelTable* table) {
  if constexpr (kRow < std::size(kRows)) {
    table->Add(kRows[kRow].op, DeviceKind::kCuda,
               {nullptr, BindRow<kRow>, Launch<kRows[kRow].function>, true});
    RegisterFrom<kRow + 1>(table);
  }
}

}  // namespace

void RegisterElementwiseCuda(KernelTable* table) {
  RegisterFrom<0>(table);
  RegisterCopiesCuda(table);
}

}  // namespace weft
