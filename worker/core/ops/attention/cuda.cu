// Attention and rotary embedding on CUDA: which way is taken, by dtype and shape. In the order of
// preference:
//   whole:    bf16, a head in shared memory (whole_heads.cu);
//   streamed: tiles that go by, on tensor cores (streamed_heads.cuh);
//   general:  any width (general.cu).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using attention::AttentionCall;
using cuda::StreamOf;

constexpr const char* kWhole = "whole";
constexpr const char* kStreamed = "streamed";
constexpr const char* kGeneral = "general";

enum class Way { kWhole, kStreamed, kGeneral };

struct AttentionState {
  AttentionCall call;
  DType dtype = DType::kF32;
  bool tf32 = false;
  bool inverse = false;  // the rotary op only
  Way way = Way::kGeneral;
  int64_t delta_at = 0;  // into scratch
};

// Index of qkv among the inputs.
constexpr int kForwardQkv = 0, kBackwardQkv = 1;

std::vector<std::string> CandidatesOf(const ArrayRef& qkv, const Attrs& attrs) {
  const int64_t width = qkv.shape.dim(2) / (3 * attrs.GetInt("heads"));
  std::vector<std::string> ways;
  if (qkv.dtype == DType::kBF16 && attention::WholeHeadsFit(qkv.shape.dim(1), width)) {
    ways.push_back(kWhole);
  }
  if (attention::StreamedHeadsFit(width)) ways.push_back(kStreamed);
  ways.push_back(kGeneral);
  return ways;
}

template <int kQkv>
std::vector<std::string> Candidates(const BindArgs& args) {
  return CandidatesOf(args.in[kQkv], *args.attrs);
}

// `base`: of the rotation; `backward`: whether delta is needed.
Bound BindShape(const ArrayRef& qkv, const Attrs& attrs, double base, Way way, bool backward) {
  auto s = std::make_shared<AttentionState>();
  const Shape& shape = qkv.shape;
  const int64_t heads = attrs.GetInt("heads"), width = shape.dim(2) / (3 * heads);
  constexpr int64_t kMost = INT32_MAX;  // blocks, and positions of a head times its width
  if (shape.dim(1) > kMost / width || shape.dim(0) * heads > kMost / (shape.dim(1) / 16 + 1)) {
    return {.error = "too many heads in a batch, or too long a context"};
  }
  if (way == Way::kGeneral && width > attention::kMostWidth) {
    return {.error = "heads wider than 256"};
  }
  s->call.items = shape.dim(0);
  s->call.time = static_cast<int>(shape.dim(1));
  s->call.heads = static_cast<int>(heads);
  s->call.width = static_cast<int>(width);
  s->call.causal = attrs.GetBool("causal");
  s->call.rotary_base = base;
  s->dtype = qkv.dtype;
  s->tf32 = attrs.GetBool("tf32");
  s->inverse = attrs.GetBool("inverse");
  s->way = way;
  Bound bound;
  // Every way has scratch for the general one, which takes over operands that are not on 16 bytes.
  if (base != 0) bound.scratch_bytes = attention::AnglesBytes(shape.dim(1), width);
  s->delta_at = bound.scratch_bytes;
  if (backward) bound.scratch_bytes += s->call.rows() * static_cast<int64_t>(sizeof(float));
  bound.state = std::move(s);
  return bound;
}

template <int kQkv>
Bound BindAttention(const std::string& candidate, const BindArgs& args) {
  const std::vector<std::string> ways = CandidatesOf(args.in[kQkv], *args.attrs);
  const std::string& name = candidate == "default" ? ways[0] : candidate;
  Way way = Way::kGeneral;
  bool found = false;
  for (const std::string& known : ways) found = found || known == name;
  if (!found) return {.error = "no way '" + name + "' for these operands"};
  if (name == kWhole) way = Way::kWhole;
  if (name == kStreamed) way = Way::kStreamed;
  return BindShape(args.in[kQkv], *args.attrs, args.attrs->GetFloat("rotary_base"), way,
                   kQkv == kBackwardQkv);
}

Bound BindRotary(const std::string&, const BindArgs& args) {
  return BindShape(args.in[0], *args.attrs, args.attrs->GetFloat("base"), Way::kGeneral, false);
}

AttentionCall CallOf(const AttentionState& s, const KernelArgs& args) {
  AttentionCall call = s.call;
  call.angles = static_cast<float2*>(args.scratch);
  call.delta = reinterpret_cast<float*>(static_cast<char*>(args.scratch) + s.delta_at);
  return call;
}

// The way that was chosen, if operands are where it wants them.
Way WayFor(const AttentionState& s, const AttentionCall& call) {
  for (const void* p :
       {call.qkv, static_cast<const void*>(call.y), call.dy, static_cast<const void*>(call.dqkv)}) {
    if (!cuda::IsAligned(p)) return Way::kGeneral;
  }
  return s.way;
}

int LaunchAttention(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  if (s.call.rows() == 0) return 0;
  AttentionCall call = CallOf(s, args);
  call.qkv = args.in[0].data;
  call.y = args.out[0].data;
  call.lse = args.out[1].as<float>();
  const cudaStream_t stream = StreamOf(args);
  switch (WayFor(s, call)) {
    case Way::kWhole:
      return attention::WholeHeadsForward(call, stream);
    case Way::kStreamed:
      if (s.dtype == DType::kBF16) return attention::StreamedBf16Forward(call, stream);
      return s.tf32 ? attention::StreamedTf32Forward(call, stream)
                    : attention::StreamedF32Forward(call, stream);
    case Way::kGeneral:
      break;
  }
  return attention::GeneralForward(call, s.dtype, stream);
}

int LaunchAttentionGrad(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  if (s.call.rows() == 0) return 0;
  AttentionCall call = CallOf(s, args);
  call.dy = args.in[0].data;
  call.qkv = args.in[1].data;
  call.y = args.in[2].data;
  call.lse = args.in[3].as<float>();
  call.dqkv = args.out[0].data;
  const cudaStream_t stream = StreamOf(args);
  switch (WayFor(s, call)) {
    case Way::kWhole:
      return attention::WholeHeadsBackward(call, stream);
    case Way::kStreamed:
      if (s.dtype == DType::kBF16) return attention::StreamedBf16Backward(call, stream);
      return s.tf32 ? attention::StreamedTf32Backward(call, stream)
                    : attention::StreamedF32Backward(call, stream);
    case Way::kGeneral:
      break;
  }
  return attention::GeneralBackward(call, s.dtype, stream);
}

int LaunchRotary(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const AttentionState*>(raw);
  if (args.out[0].elements() == 0) return 0;
  AttentionCall call = CallOf(s, args);
  call.qkv = args.in[0].data;
  call.y = args.out[0].data;
  return attention::Rotate(call, s.inverse, s.dtype, StreamOf(args));
}

}  // namespace

void RegisterAttentionCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rotary", kCuda, {nullptr, BindRotary, LaunchRotary, true});
  table->Add("attention", kCuda,
             {Candidates<kForwardQkv>, BindAttention<kForwardQkv>, LaunchAttention, true});
  table->Add("attention_grad", kCuda,
             {Candidates<kBackwardQkv>, BindAttention<kBackwardQkv>, LaunchAttentionGrad, true});
}

}  // namespace weft
