// Random numbers on CUDA: a thread draws one Philox block, four global elements. Words, uniform
// draws and what dropout keeps are the CPU's bit for bit; normals differ by the functions'
// rounding.
#include <memory>
#include <string>

#include "fabric/base/philox.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/random/state.h"

namespace weft {
namespace {

constexpr int kThreads = 256;

struct DrawArgs {
  uint64_t seed, key;
  int64_t global;  // element of the step's batch that element 0 here is
  int64_t elements;
  float first, second;
};

template <Draw kDraw, typename T>
__global__ void __launch_bounds__(kThreads)
    DrawKernel(const DrawArgs a, const cuda::StepNumber step, const T* in, T* out) {
  const int64_t block = a.global / 4 + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = block * 4 - a.global;  // may be before the first element here
  if (first >= a.elements) return;
  // Seed, op and step pick a stream by a draw of their own.
  const PhiloxBlock stream = Philox(a.seed, a.key, static_cast<uint64_t>(step.get()));
  const PhiloxBlock words =
      Philox(stream.word[0] | uint64_t{stream.word[1]} << 32,
             stream.word[2] | uint64_t{stream.word[3]} << 32, static_cast<uint64_t>(block));
  float value[4];
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
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = first + i;
    if (at < 0 || at >= a.elements) continue;
    if constexpr (kDraw == Draw::kNormal) {
      out[at] = cuda::Round<T>(value[i] * a.first);
    } else if constexpr (kDraw == Draw::kUniform) {
      // Rounded after each operation, as on the CPU.
      out[at] = cuda::Round<T>(__fadd_rn(a.first, __fmul_rn(a.second, value[i])));
    } else {
      const float kept = cuda::Load(in[at]) * a.second;
      out[at] = cuda::Round<T>(value[i] >= a.first ? kept : 0.0f);
    }
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
void LaunchOf(const RandomState& s, const KernelArgs& args) {
  const DrawArgs a = {args.step.seed, s.key,   args.step.first_row * s.row_elements,
                      s.elements,     s.first, s.second};
  const int64_t blocks = (a.global + a.elements + 3) / 4 - a.global / 4;
  DrawKernel<kDraw, T><<<static_cast<unsigned>(cuda::CeilDiv(blocks, kThreads)), kThreads, 0,
                         cuda::StreamOf(args)>>>(
      a, cuda::StepOf(args), args.in_count > 0 ? args.in[0].as<const T>() : nullptr,
      args.out[0].as<T>());
}

template <Draw kDraw>
int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const RandomState*>(raw);
  if (s.elements == 0) return 0;
  switch (args.out[0].dtype) {
    case DType::kF32:
      LaunchOf<kDraw, float>(s, args);
      return cuda::LaunchError();
    case DType::kBF16:
      LaunchOf<kDraw, cuda::bf16>(s, args);
      return cuda::LaunchError();
    default:
      return static_cast<int>(cudaErrorInvalidValue);
  }
}

}  // namespace

void RegisterRandomCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("uniform", kCuda, {nullptr, BindDraw<Draw::kUniform>, Launch<Draw::kUniform>});
  table->Add("normal", kCuda, {nullptr, BindDraw<Draw::kNormal>, Launch<Draw::kNormal>});
  table->Add("dropout", kCuda, {nullptr, BindDraw<Draw::kDropout>, Launch<Draw::kDropout>, true});
}

}  // namespace weft
