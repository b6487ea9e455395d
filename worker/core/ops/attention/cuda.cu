// Attention and rotary embedding on CUDA: which way is taken, by dtype and shape. About in
// the order of preference:
//   cudnn:    bf16 without rotation, long contexts (cudnn_attention.h);
//   whole:    bf16, a head in shared memory (whole_heads.cu);
//   streamed: tiles that go by, on tensor cores (streamed_heads.cuh);
//   general:  any width (general.cu).
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/attention/cudnn_attention.h"
#include "worker/core/ops/attention/paths.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using attention::AttentionCall;
using attention::CudnnAttention;
using cuda::StreamOf;

enum class Way { kWhole, kCudnn, kStreamed, kGeneral };
constexpr const char* kNames[] = {"whole", "cudnn", "streamed", "general"};

struct AttentionState {
  AttentionCall call;
  DType dtype = DType::kF32;
  bool tf32 = false;
  bool inverse = false;  // the rotary op only
  Way way = Way::kGeneral;
  std::shared_ptr<const CudnnAttention> cudnn;  // that way's
};

enum class Pass { kForward, kBackward };

template <Pass kPass>
constexpr int kQkv = kPass == Pass::kForward ? 0 : 1;  // its number among the inputs

// What shape and attributes say; no pointers.
AttentionCall CallOf(const ArrayRef& qkv, const Attrs& attrs, double rotary_base) {
  AttentionCall call;
  call.items = qkv.shape.dim(0);
  call.time = static_cast<int>(qkv.shape.dim(1));
  call.heads = static_cast<int>(attrs.GetInt("heads"));
  call.width = static_cast<int>(qkv.shape.dim(2) / (3 * attrs.GetInt("heads")));
  call.causal = attrs.GetBool("causal");
  call.rotary_base = rotary_base;
  return call;
}

bool CudnnFits(const AttentionCall& call, DType dtype) {
  return dtype == DType::kBF16 && call.rotary_base == 0 && call.rows() > 0 && call.time >= 256 &&
         call.time % 64 == 0 && (call.width == 64 || call.width == 128);
}
std::shared_ptr<const CudnnAttention> CudnnOf(const AttentionCall& call, Pass pass) {
  return pass == Pass::kForward ? CudnnAttention::Forward(call) : CudnnAttention::Backward(call);
}

// From where its gradient is faster than ours; it wants more scratch.
constexpr int kCudnnBackwardTime = 512;

// By shape, best first. Whether the library has a plan costs much to ask, so HasWay says that of
// one.
std::vector<Way> WaysOf(const AttentionCall& call, DType dtype, Pass pass) {
  std::vector<Way> ways;
  const bool cudnn = CudnnFits(call, dtype);
  if (cudnn && pass == Pass::kForward) ways.push_back(Way::kCudnn);
  if (dtype == DType::kBF16 && attention::WholeHeadsFit(call.time, call.width)) {
    ways.push_back(Way::kWhole);
  }
  if (cudnn && pass == Pass::kBackward && call.time >= kCudnnBackwardTime) {
    ways.push_back(Way::kCudnn);
  }
  if (attention::StreamedHeadsFit(call.width)) ways.push_back(Way::kStreamed);
  if (cudnn && pass == Pass::kBackward && call.time < kCudnnBackwardTime) {
    ways.push_back(Way::kCudnn);
  }
  if (call.width <= attention::kMostWidth) ways.push_back(Way::kGeneral);
  return ways;
}

bool HasWay(Way way, const AttentionCall& call, Pass pass) {
  return way != Way::kCudnn || CudnnOf(call, pass) != nullptr;
}

// Not empty: why there is none.
std::string Refused(const ArrayRef& qkv, const Attrs& attrs) {
  const int64_t heads = attrs.GetInt("heads"), width = qkv.shape.dim(2) / (3 * heads);
  const int64_t time = qkv.shape.dim(1);
  constexpr int64_t kMost = INT32_MAX;  // blocks, and positions of a head times its width
  if (time > kMost / width || qkv.shape.dim(0) * heads > kMost / (time / 16 + 1)) {
    return "too many heads in a batch, or too long a context";
  }
  return "";
}

template <Pass kPass>
std::vector<std::string> Candidates(const BindArgs& args) {
  const ArrayRef& qkv = args.in[kQkv<kPass>];
  if (!Refused(qkv, *args.attrs).empty()) return {"default"};
  const AttentionCall call = CallOf(qkv, *args.attrs, args.attrs->GetFloat("rotary_base"));
  std::vector<std::string> names;
  for (const Way way : WaysOf(call, qkv.dtype, kPass)) {
    if (HasWay(way, call, kPass)) names.push_back(kNames[static_cast<int>(way)]);
  }
  return names;
}

template <Pass kPass>
Bound BindAttention(const std::string& candidate, const BindArgs& args) {
  const ArrayRef& qkv = args.in[kQkv<kPass>];
  if (std::string why = Refused(qkv, *args.attrs); !why.empty()) return {.error = std::move(why)};
  auto s = std::make_shared<AttentionState>();
  s->call = CallOf(qkv, *args.attrs, args.attrs->GetFloat("rotary_base"));
  s->dtype = qkv.dtype;
  s->tf32 = args.attrs->GetBool("tf32");
  const std::vector<Way> ways = WaysOf(s->call, s->dtype, kPass);
  const auto way = std::find_if(ways.begin(), ways.end(), [&](Way known) {
    return (candidate == "default" || candidate == kNames[static_cast<int>(known)]) &&
           HasWay(known, s->call, kPass);
  });
  if (ways.empty()) return {.error = "heads wider than 256"};
  if (way == ways.end()) return {.error = "no way '" + candidate + "' for these operands"};
  s->way = *way;
  Bound bound;
  constexpr bool kIsBackward = kPass == Pass::kBackward;
  int64_t bytes = 0;
  if (s->way == Way::kCudnn) {
    s->cudnn = CudnnOf(s->call, kPass);
    bytes = s->cudnn->workspace_bytes();
  } else if (s->way == Way::kStreamed) {
    bytes = attention::StreamedScratch(s->call, s->dtype, kIsBackward);
  }
  // Every way falls back to the general one where operands are not on 16 bytes.
  bound.scratch_bytes = std::max(bytes, attention::GeneralScratch(s->call, kIsBackward));
  bound.state = std::move(s);
  return bound;
}

Bound BindRotary(const std::string&, const BindArgs& args) {
  if (std::string why = Refused(args.in[0], *args.attrs); !why.empty()) {
    return {.error = std::move(why)};
  }
  auto s = std::make_shared<AttentionState>();
  s->call = CallOf(args.in[0], *args.attrs, args.attrs->GetFloat("base"));
  s->dtype = args.in[0].dtype;
  s->inverse = args.attrs->GetBool("inverse");
  Bound bound;
  bound.scratch_bytes = attention::GeneralScratch(s->call, false);
  bound.state = std::move(s);
  return bound;
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
  AttentionCall call = s.call;
  call.scratch = args.scratch;
  call.qkv = args.in[0].data;
  call.y = args.out[0].data;
  call.lse = args.out[1].as<float>();
  const cudaStream_t stream = StreamOf(args);
  switch (WayFor(s, call)) {
    case Way::kWhole:
      return attention::WholeHeadsForward(call, stream);
    case Way::kCudnn:
      return s.cudnn->Launch(call, args.scratch, stream);
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
  AttentionCall call = s.call;
  call.scratch = args.scratch;
  call.dy = args.in[0].data;
  call.qkv = args.in[1].data;
  call.y = args.in[2].data;
  call.lse = args.in[3].as<float>();
  call.dqkv = args.out[0].data;
  const cudaStream_t stream = StreamOf(args);
  switch (WayFor(s, call)) {
    case Way::kWhole:
      return attention::WholeHeadsBackward(call, stream);
    case Way::kCudnn:
      return s.cudnn->Launch(call, args.scratch, stream);
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
  AttentionCall call = s.call;
  call.scratch = args.scratch;
  call.qkv = args.in[0].data;
  call.y = args.out[0].data;
  return attention::Rotate(call, s.inverse, s.dtype, StreamOf(args));
}

}  // namespace

void RegisterAttentionCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("rotary", kCuda, {nullptr, BindRotary, LaunchRotary, true});
  table->Add("attention", kCuda,
             {Candidates<Pass::kForward>, BindAttention<Pass::kForward>, LaunchAttention, true});
  table->Add(
      "attention_grad", kCuda,
      {Candidates<Pass::kBackward>, BindAttention<Pass::kBackward>, LaunchAttentionGrad, true});
}

}  // namespace weft
