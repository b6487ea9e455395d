// Random numbers on CUDA. Element g of the step's batch is word g % 4 of Philox block g / 4, so a
// thread draws one or two blocks for every 16 bytes; where 16 bytes would start within a block, or
// cannot be moved at once, it draws a block for up to four elements. Words, uniform draws and what
// dropout keeps are the CPU's bit for bit; normals differ by the functions' rounding.
#include <algorithm>
#include <memory>
#include <string>

#include "fabric/base/philox.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/random/state.h"

namespace weft {
namespace {

using cuda::CeilDiv;
using cuda::Pack;

constexpr int kThreads = 256;
constexpr int kEach = 4;  // packs a thread

struct DrawArgs {
  uint64_t seed, key;
  int64_t global;  // element of the step's batch that element 0 here is
  int64_t elements;
  float first, second;
};

// The stream of an op in a step: seed, op and step pick it by a draw of their own.
struct Stream {
  uint64_t key, counter;

  __device__ Stream(const DrawArgs& a, int64_t step) {
    const PhiloxBlock drawn = Philox(a.seed, a.key, static_cast<uint64_t>(step));
    key = drawn.word[0] | uint64_t{drawn.word[1]} << 32;
    counter = drawn.word[2] | uint64_t{drawn.word[3]} << 32;
  }
  __device__ PhiloxBlock Block(int64_t block) const {
    return Philox(key, counter, static_cast<uint64_t>(block));
  }
};

// The four numbers of a block, before constants and operands.
template <Draw kDraw>
__device__ __forceinline__ void Numbers(const PhiloxBlock& words, float* value) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    if constexpr (kDraw == Draw::kNormal) {
      // In (0, 1], so that the logarithm is finite.
      const float u = UnitFloat(words.word[i]) + 0x1p-24f;
      const float radius = sqrtf(-2.0f * logf(u));
      float sine, cosine;
      sincospif(2.0f * UnitFloat(words.word[i + 1]), &sine, &cosine);
      value[i] = radius * cosine;
      value[i + 1] = radius * sine;
    } else {
      value[i] = UnitFloat(words.word[i]);
      value[i + 1] = UnitFloat(words.word[i + 1]);
    }
  }
}

// The result of one number; `x` is dropout's operand.
template <Draw kDraw>
__device__ __forceinline__ float Result(const DrawArgs& a, float number, float x) {
  if constexpr (kDraw == Draw::kNormal) return number * a.first;
  // Rounded after each operation, as on the CPU.
  if constexpr (kDraw == Draw::kUniform) return __fadd_rn(a.first, __fmul_rn(a.second, number));
  return number >= a.first ? x * a.second : 0.0f;
}

// Element 0 is the first of a block.
template <Draw kDraw, typename T>
__global__ void __launch_bounds__(kThreads)
    PackKernel(const DrawArgs a, const cuda::StepNumber step, const T* in, T* out) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t packs = a.elements / kSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  Pack<T> x[kEach];
  if constexpr (kDraw == Draw::kDropout) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int64_t p = first + u * kThreads;
      if (p < packs) x[u] = cuda::LoadPack(in + p * kSize);
    }
  }
  const Stream stream(a, step.get());
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t p = first + u * kThreads;
    if (p >= packs) continue;
    float value[kSize];
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      Numbers<kDraw>(stream.Block((a.global + p * kSize + i) / 4), value + i);
    }
    Pack<T> result;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float operand = kDraw == Draw::kDropout ? cuda::Load(x[u].value[i]) : 0.0f;
      result.value[i] = cuda::Round<T>(Result<kDraw>(a, value[i], operand));
    }
    cuda::StorePack(out + p * kSize, result);
  }
  // What is left is less than a pack.
  const int64_t at = packs * kSize + threadIdx.x;
  if (blockIdx.x != gridDim.x - 1 || at >= a.elements) return;
  float value[4];
  Numbers<kDraw>(stream.Block((a.global + at) / 4), value);
  const float number = at % 4 == 0   ? value[0]
                       : at % 4 == 1 ? value[1]
                       : at % 4 == 2 ? value[2]
                                     : value[3];
  const float operand = kDraw == Draw::kDropout ? cuda::Load(in[at]) : 0.0f;
  out[at] = cuda::Round<T>(Result<kDraw>(a, number, operand));
}

template <Draw kDraw, typename T>
__global__ void __launch_bounds__(kThreads)
    BlockKernel(const DrawArgs a, const cuda::StepNumber step, const T* in, T* out) {
  const int64_t block = a.global / 4 + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = block * 4 - a.global;  // may be before the first element here
  if (first >= a.elements) return;
  float value[4];
  Numbers<kDraw>(Stream(a, step.get()).Block(block), value);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = first + i;
    if (at < 0 || at >= a.elements) continue;
    const float operand = kDraw == Draw::kDropout ? cuda::Load(in[at]) : 0.0f;
    out[at] = cuda::Round<T>(Result<kDraw>(a, value[i], operand));
  }
}

template <Draw kDraw>
Bound BindDraw(const std::string&, const BindArgs& args) {
  const ArrayRef& out = args.out[0];
  if (!out.contiguous()) return {.error = "the result is not contiguous"};
  if (args.in_count > 0 && !args.in[0].contiguous()) return {.error = "x is not contiguous"};
  auto s = std::make_shared<RandomState>();
  s->draw = kDraw;
  s->key = static_cast<uint64_t>(args.attrs->GetInt("key"));
  s->elements = out.elements();
  if (out.shape.rank() > 0 && out.shape.dim(0) > 0) {
    s->row_elements = s->elements / out.shape.dim(0);
  }
  if constexpr (kDraw == Draw::kUniform) {
    const double low = args.attrs->GetFloat("low");
    s->first = static_cast<float>(low);
    s->second = static_cast<float>(args.attrs->GetFloat("high") - low);
  } else if constexpr (kDraw == Draw::kNormal) {
    s->first = static_cast<float>(args.attrs->GetFloat("std"));
  } else {
    const double p = args.attrs->GetFloat("p");
    s->first = static_cast<float>(p);
    s->second = static_cast<float>(1.0 / (1.0 - p));
  }
  return {.state = std::move(s)};
}

template <Draw kDraw, typename T>
int LaunchOf(const RandomState& s, const KernelArgs& args) {
  constexpr int64_t kSize = Pack<T>::kSize;
  const DrawArgs a = {args.step.seed, s.key,   args.step.first_row * s.row_elements,
                      s.elements,     s.first, s.second};
  const T* in = args.in_count > 0 ? args.in[0].as<const T>() : nullptr;
  T* out = args.out[0].as<T>();
  if (a.global % 4 == 0 && cuda::IsAligned(in) && cuda::IsAligned(out)) {
    const int64_t packs = std::max<int64_t>(1, a.elements / kSize);
    PackKernel<kDraw, T><<<static_cast<unsigned>(CeilDiv(packs, kThreads * kEach)), kThreads, 0,
                           cuda::StreamOf(args)>>>(a, cuda::StepOf(args), in, out);
  } else {
    const int64_t blocks = (a.global + a.elements + 3) / 4 - a.global / 4;
    BlockKernel<kDraw, T>
        <<<static_cast<unsigned>(CeilDiv(blocks, kThreads)), kThreads, 0, cuda::StreamOf(args)>>>(
            a, cuda::StepOf(args), in, out);
  }
  return cuda::LaunchError();
}

template <Draw kDraw>
int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const RandomState*>(raw);
  if (s.elements == 0) return 0;
  if (args.out[0].dtype == DType::kF32) return LaunchOf<kDraw, float>(s, args);
  if constexpr (kDraw == Draw::kDropout) {
    if (args.out[0].dtype == DType::kBF16) return LaunchOf<kDraw, cuda::bf16>(s, args);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace

void RegisterRandomCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("uniform", kCuda, {nullptr, BindDraw<Draw::kUniform>, Launch<Draw::kUniform>});
  table->Add("normal", kCuda, {nullptr, BindDraw<Draw::kNormal>, Launch<Draw::kNormal>});
  table->Add("dropout", kCuda, {nullptr, BindDraw<Draw::kDropout>, Launch<Draw::kDropout>, true});
}

}  // namespace weft
