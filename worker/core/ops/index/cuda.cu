// Rows by number on CUDA: the gather, and which way the gradient takes.
#include <memory>
#include <string>
#include <utility>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/index/gradients.h"
#include "worker/core/ops/index/state.h"

namespace weft {
namespace {

using cuda::CeilDiv;
using cuda::StreamOf;

constexpr int kThreads = 256;
constexpr int kEach = 4;
constexpr int64_t kMostScanned = int64_t{1} << 22;  // ids that all blocks look at

// ---- Forward.

// One element, or 16 bytes, of a row of `words`; kEach a thread.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const Word* table, const int32_t* ids, Word* out, int64_t rows,
                 const cuda::Divisor words, int64_t total, Word nan) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  int64_t from[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t i = first + u * kThreads;
    from[u] = -1;
    if (i >= total) continue;
    const int64_t at =
        total < cuda::kMost32 ? words.Quotient(static_cast<uint32_t>(i)) : i / words.value;
    const int64_t id = ids[at];
    if (id >= 0 && id < rows) from[u] = id * words.value + (i - at * words.value);
  }
  Word word[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    word[u] = nan;
    if (from[u] >= 0) word[u] = table[from[u]];
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t i = first + u * kThreads;
    if (i < total) out[i] = word[u];
  }
}

template <typename Word>
void LaunchGather(const EmbeddingState& s, const KernelArgs& args, int64_t words, Word nan) {
  const int64_t total = s.ids * words;
  GatherKernel<Word>
      <<<static_cast<unsigned>(CeilDiv(total, kThreads * kEach)), kThreads, 0, StreamOf(args)>>>(
          args.in[0].as<const Word>(), args.in[1].as<const int32_t>(), args.out[0].as<Word>(),
          s.rows, cuda::Divisor(words), total, nan);
}

int LaunchEmbedding(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const EmbeddingState*>(raw);
  if (s.ids * s.width == 0) return 0;
  const int64_t size = static_cast<int64_t>(SizeOf(args.out[0].dtype));
  const bool packs = s.width * size % 16 == 0 && cuda::IsAligned(args.in[0].data) &&
                     cuda::IsAligned(args.out[0].data);
  const uint32_t nan = size == 2 ? 0x7fc07fc0u : 0x7fc00000u;
  if (packs) {
    LaunchGather<uint4>(s, args, s.width * size / 16, make_uint4(nan, nan, nan, nan));
  } else if (size == 2) {
    LaunchGather<uint16_t>(s, args, s.width, static_cast<uint16_t>(nan));
  } else {
    LaunchGather<uint32_t>(s, args, s.width, nan);
  }
  return cuda::LaunchError();
}

// ---- Gradient.

Bound CheckOperands(const ArrayRef& table, const ArrayRef& ids, const BindArgs& args) {
  for (int i = 0; i < args.in_count; ++i) {
    if (!args.in[i].contiguous()) return {.error = "operands are not contiguous"};
  }
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  if (ids.elements() >= INT32_MAX || table.shape.dim(0) >= INT32_MAX) {
    return {.error = "more than 2^31 - 2 ids or rows"};
  }
  return {};
}

Bound BindEmbedding(const std::string&, const BindArgs& args) {
  Bound bound = CheckOperands(args.in[0], args.in[1], args);
  if (!bound.error.empty()) return bound;
  bound.state = std::make_shared<EmbeddingState>(
      EmbeddingState{args.in[0].shape.dim(0), args.in[0].shape.dim(1), args.in[1].elements()});
  return bound;
}

struct GradState : EmbeddingState {
  bool sorts = false;
  ScanCut scan;
  SortCut sort;
};

Bound BindEmbeddingGrad(const std::string&, const BindArgs& args) {
  Bound bound = CheckOperands(args.out[0], args.in[1], args);
  if (!bound.error.empty()) return bound;
  auto s = std::make_shared<GradState>();
  s->rows = args.out[0].shape.dim(0);
  s->width = args.out[0].shape.dim(1);
  s->ids = args.in[1].elements();
  s->sorts = s->rows * s->ids > kMostScanned;
  if (s->sorts) {
    s->sort = CutSort(*s, args.in[0].dtype);
    bound.scratch_bytes = s->sort.words * static_cast<int64_t>(sizeof(int32_t));
  } else {
    s->scan = CutScan(*s, args.in[0].dtype);
  }
  bound.state = std::move(s);
  return bound;
}

int LaunchEmbeddingGrad(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const GradState*>(raw);
  if (s.rows * s.width == 0) return 0;
  s.sorts ? LaunchSort(s, s.sort, args) : LaunchScan(s, s.scan, args);
  return cuda::LaunchError();
}

}  // namespace

void RegisterIndexCuda(KernelTable* table) {
  table->Add("embedding", DeviceKind::kCuda, {nullptr, BindEmbedding, LaunchEmbedding, true});
  table->Add("embedding_grad", DeviceKind::kCuda,
             {nullptr, BindEmbeddingGrad, LaunchEmbeddingGrad, true});
}

}  // namespace weft
