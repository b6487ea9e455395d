// Elementwise functions and copies on CUDA. Where all operands are plain runs of memory a thread
// takes 16 bytes of each; else each thread finds its element in every operand by its strides. The
// function is chosen once a thread, outside of its loop over elements.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/elementwise/state.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::ComputeType;
using cuda::DeviceWalk;
using cuda::OffsetsOf;
using cuda::Pack;
using cuda::StreamOf;
using cuda::ToDevice;

constexpr int kThreads = 256;

constexpr double kGeluSlope = 1.5957691216057308;  // 2 sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

template <typename C>
__device__ __forceinline__ C Sigmoid(C x) {
  return C{1} / (C{1} + exp(-x));
}

// x/2 (1 + tanh u) = x sigmoid(2 u).
template <typename C>
__device__ __forceinline__ C Gelu(C x) {
  return x * Sigmoid(x * (x * x * C(kGeluSlope * kGeluCube) + C(kGeluSlope)));
}

template <typename C>
__device__ __forceinline__ C GeluSlope(C x) {
  // The slope is 0 or 1 further out; the limit keeps 0 * infinity away.
  const C limit = sizeof(C) == 4 ? C{12} : C{32};
  if (x > limit) x = limit;
  if (x < -limit) x = -limit;
  const C square = x * x;
  const C s = Sigmoid(x * (square * C(kGeluSlope * kGeluCube) + C(kGeluSlope)));
  const C du = square * C(3 * kGeluSlope * kGeluCube) + C(kGeluSlope);
  return s + x * du * s * (C{1} - s);
}

struct Constants {
  double first, second;
};

// Calls body(f), f(a, b, c) the function of one element; unused operands are ignored.
template <typename C, typename Body>
__device__ __forceinline__ void WithFunction(ElementwiseFunction function, Constants constants,
                                             Body&& body) {
  using F = ElementwiseFunction;
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
      return body([](C a, C, C) { return Sigmoid(a); });
    case F::kRelu:
      return body([](C a, C, C) { return a < C{0} ? C{0} : a; });
    case F::kSquare:
      return body([](C a, C, C) { return a * a; });
    case F::kGelu:
      return body([](C a, C, C) { return Gelu(a); });
    case F::kGeluGrad:
      return body([](C a, C b, C) { return GeluSlope(a) * b; });
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
};

template <typename T, int kOperands>
__global__ void __launch_bounds__(kThreads)
    LinearKernel(ElementwiseFunction function, Constants constants, Operands operands, int64_t n) {
  using C = ComputeType<T>;
  constexpr int kSize = Pack<T>::kSize;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kSize;
  if (first >= n) return;
  const auto* a = static_cast<const T*>(operands.in[0]) + first;
  const auto* b = static_cast<const T*>(operands.in[kOperands > 1 ? 1 : 0]) + first;
  const auto* c = static_cast<const T*>(operands.in[kOperands > 2 ? 2 : 0]) + first;
  auto* out = static_cast<T*>(operands.out) + first;
  WithFunction<C>(function, constants, [&](auto f) {
    if (first + kSize <= n) {
      const Pack<T> pa = cuda::LoadPack(a);
      Pack<T> pb = pa, pc = pa, result;
      if constexpr (kOperands > 1) pb = cuda::LoadPack(b);
      if constexpr (kOperands > 2) pc = cuda::LoadPack(c);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        result.value[i] = cuda::Round<T>(
            f(cuda::Load(pa.value[i]), cuda::Load(pb.value[i]), cuda::Load(pc.value[i])));
      }
      cuda::StorePack(out, result);
    } else {
      for (int i = 0; i < n - first; ++i) {
        out[i] = cuda::Round<T>(f(cuda::Load(a[i]), cuda::Load(b[i]), cuda::Load(c[i])));
      }
    }
  });
}

template <typename T, int kOperands, typename Index>
__global__ void __launch_bounds__(kThreads)
    StridedKernel(ElementwiseFunction function, Constants constants, Operands operands,
                  DeviceWalk walk) {
  using C = ComputeType<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.elements) return;
  int64_t offset[kOperands];
  OffsetsOf<Index>(walk, static_cast<Index>(i), offset);
  C value[kMaxWalked] = {};
#pragma unroll
  for (int k = 0; k < kOperands; ++k) {
    value[k] = cuda::Load(static_cast<const T*>(operands.in[k])[offset[k]]);
  }
  WithFunction<C>(function, constants, [&](auto f) {
    static_cast<T*>(operands.out)[i] = cuda::Round<T>(f(value[0], value[1], value[2]));
  });
}

unsigned BlocksFor(int64_t items) { return static_cast<unsigned>(cuda::CeilDiv(items, kThreads)); }

bool Fits32(const Walk& walk) { return walk.elements < (int64_t{1} << 31); }

template <typename T, int kOperands>
void LaunchOf(const ElementwiseState& s, const Operands& operands, cudaStream_t stream) {
  const Constants constants = {s.first, s.second};
  bool aligned = s.walk.linear() && cuda::IsAligned(operands.out);
  for (int k = 0; k < kOperands; ++k) aligned = aligned && cuda::IsAligned(operands.in[k]);
  if (aligned) {
    const int64_t packs = cuda::CeilDiv(s.walk.elements, Pack<T>::kSize);
    LinearKernel<T, kOperands><<<BlocksFor(packs), kThreads, 0, stream>>>(
        s.function, constants, operands, s.walk.elements);
  } else if (Fits32(s.walk)) {
    StridedKernel<T, kOperands, uint32_t><<<BlocksFor(s.walk.elements), kThreads, 0, stream>>>(
        s.function, constants, operands, ToDevice(s.walk));
  } else {
    StridedKernel<T, kOperands, uint64_t><<<BlocksFor(s.walk.elements), kThreads, 0, stream>>>(
        s.function, constants, operands, ToDevice(s.walk));
  }
}

int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const ElementwiseState*>(raw);
  if (s.walk.elements == 0) return 0;
  Operands operands = {};
  for (int i = 0; i < args.in_count; ++i) operands.in[i] = args.in[i].data;
  operands.out = args.out[0].data;
  return cuda::ForFloat(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.in_count == 1) LaunchOf<T, 1>(s, operands, StreamOf(args));
    if (args.in_count == 2) LaunchOf<T, 2>(s, operands, StreamOf(args));
    if (args.in_count == 3) LaunchOf<T, 3>(s, operands, StreamOf(args));
    return cuda::LaunchError();
  });
}

// How each op is run: its function, and the attributes that are its constants.
struct Row {
  const char* op;
  ElementwiseFunction function;
  const char* first = nullptr;
  const char* second = nullptr;
};
constexpr Row kRows[] = {
    {"add", ElementwiseFunction::kAdd},
    {"sub", ElementwiseFunction::kSub},
    {"mul", ElementwiseFunction::kMul},
    {"div", ElementwiseFunction::kDiv},
    {"maximum", ElementwiseFunction::kMaximum},
    {"greater", ElementwiseFunction::kGreater},
    {"where", ElementwiseFunction::kWhere},
    {"neg", ElementwiseFunction::kNeg},
    {"exp", ElementwiseFunction::kExp},
    {"log", ElementwiseFunction::kLog},
    {"sqrt", ElementwiseFunction::kSqrt},
    {"rsqrt", ElementwiseFunction::kRsqrt},
    {"tanh", ElementwiseFunction::kTanh},
    {"sigmoid", ElementwiseFunction::kSigmoid},
    {"relu", ElementwiseFunction::kRelu},
    {"square", ElementwiseFunction::kSquare},
    {"gelu", ElementwiseFunction::kGelu},
    {"gelu_grad", ElementwiseFunction::kGeluGrad},
    {"scale", ElementwiseFunction::kScale, "factor"},
    {"shift", ElementwiseFunction::kShift, "amount"},
    {"clamp", ElementwiseFunction::kClamp, "min", "max"},
    {"scale_by", ElementwiseFunction::kMul},
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
    table->Add(kRows[kRow].op, DeviceKind::kCuda, {nullptr, BindRow<kRow>, Launch, true});
    RegisterFrom<kRow + 1>(table);
  }
}

// ---- Copies between strides and types.

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

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(const From* in, To* out, DeviceWalk walk, bool linear) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= walk.elements) return;
  int64_t offset[1] = {i};
  if (!linear) OffsetsOf<uint64_t>(walk, static_cast<uint64_t>(i), offset);
  out[i] = Convert<To>(in[offset[0]]);
}

// The casts of every step: eight elements a thread.
template <typename To, typename From>
__global__ void __launch_bounds__(kThreads) ConvertRun(const From* in, To* out, int64_t n) {
  constexpr int kEach = 8;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (first >= n) return;
  if (first + kEach > n) {
    for (int64_t i = first; i < n; ++i) out[i] = Convert<To>(in[i]);
    return;
  }
  alignas(16) From from[kEach];
  alignas(16) To to[kEach];
#pragma unroll
  for (size_t i = 0; i < sizeof(from) / 16; ++i) {
    reinterpret_cast<uint4*>(from)[i] = reinterpret_cast<const uint4*>(in + first)[i];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = Convert<To>(from[i]);
#pragma unroll
  for (size_t i = 0; i < sizeof(to) / 16; ++i) {
    reinterpret_cast<uint4*>(out + first)[i] = reinterpret_cast<const uint4*>(to)[i];
  }
}

template <typename To, typename From>
void LaunchConvert(const Walk& walk, const KernelArgs& args) {
  const auto* in = args.in[0].as<const From>();
  auto* out = args.out[0].as<To>();
  if constexpr (sizeof(To) >= 2 && sizeof(From) >= 2) {
    if (walk.linear() && cuda::IsAligned(in) && cuda::IsAligned(out)) {
      ConvertRun<To, From>
          <<<BlocksFor(cuda::CeilDiv(walk.elements, 8)), kThreads, 0, StreamOf(args)>>>(
              in, out, walk.elements);
      return;
    }
  }
  ConvertKernel<To, From><<<BlocksFor(walk.elements), kThreads, 0, StreamOf(args)>>>(
      in, out, ToDevice(walk), walk.linear());
}

Bound BindWalk(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  return {.state = std::make_shared<Walk>(MakeWalk(args.out[0].shape, args.in, args.in_count))};
}

// Moves bytes, so only the width matters.
int LaunchCopy(const void* raw, const KernelArgs& args) {
  const Walk& walk = *static_cast<const Walk*>(raw);
  if (walk.elements == 0) return 0;
  switch (SizeOf(args.out[0].dtype)) {
    case 1:
      LaunchConvert<uint8_t, uint8_t>(walk, args);
      break;
    case 2:
      LaunchConvert<uint16_t, uint16_t>(walk, args);
      break;
    case 4:
      LaunchConvert<uint32_t, uint32_t>(walk, args);
      break;
    default:
      LaunchConvert<uint64_t, uint64_t>(walk, args);
  }
  return cuda::LaunchError();
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
  WithType(args.in[0].dtype, [&](auto from) {
    WithType(args.out[0].dtype,
             [&](auto to) { LaunchConvert<decltype(to), decltype(from)>(walk, args); });
  });
  return cuda::LaunchError();
}

template <typename T>
__global__ void __launch_bounds__(kThreads) FillKernel(T* out, double value, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = Convert<T>(value);
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
    FillKernel<T><<<BlocksFor(n), kThreads, 0, StreamOf(args)>>>(args.out[0].as<T>(), value, n);
  });
  return cuda::LaunchError();
}

}  // namespace

void RegisterElementwiseCuda(KernelTable* table) {
  RegisterFrom<0>(table);
  table->Add("copy", DeviceKind::kCuda, {nullptr, BindWalk, LaunchCopy, true});
  table->Add("cast", DeviceKind::kCuda, {nullptr, BindWalk, LaunchCast, true});
  table->Add("fill", DeviceKind::kCuda, {nullptr, BindFill, LaunchFill, true});
}

}  // namespace weft
