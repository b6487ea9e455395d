// Losses on CUDA. linear_cross_entropy goes by rows in chunks: of a chunk the logits by a product,
// then loss and gradient in place, then dx and the chunk's share of dw by two more; whole logits
// never exist.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/loss/row_losses.h"
#include "worker/core/ops/matmul/product.h"

namespace weft {
namespace {

using cuda::CeilDiv;
using cuda::Product;
using cuda::ProductSpec;
using cuda::StreamOf;

// ---- cross_entropy and its gradient.

struct LossState {
  int64_t rows = 0;
  int classes = 0;
};

Bound BindLoss(const std::string&, const BindArgs& args) {
  if (args.in[0].shape.dim(-1) >= INT32_MAX) return {.error = "more than 2^31 - 2 classes"};
  auto state = std::make_shared<LossState>();
  state->rows = args.in[1].elements();
  state->classes = static_cast<int>(args.in[0].shape.dim(-1));
  if (PrepareLossRows(args.in[0].dtype, state->classes) != 0) {
    return {.error = "the device has too little shared memory"};
  }
  const int64_t scratch = state->rows * static_cast<int64_t>(sizeof(RowSums));
  return {std::move(state), scratch, ""};
}

int LaunchLoss(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  LossRows rows = {};
  rows.dtype = args.in[0].dtype;
  rows.logits = args.in[0].data;
  rows.targets = args.in[1].as<const int32_t>();
  rows.lse = args.out[3].as<float>();
  rows.sums = static_cast<RowSums*>(args.scratch);
  rows.rows = s.rows;
  rows.classes = s.classes;
  if (const int error = LaunchLossRows(rows, StreamOf(args)); error != 0) return error;
  return LaunchRowSums(rows.sums, s.rows, args.out[0].as<float>(), args.out[1].as<float>(),
                       args.out[2].as<float>(), StreamOf(args));
}

Bound BindLossGrad(const std::string& candidate, const BindArgs& args) {
  Bound bound = BindLoss(candidate, args);
  bound.scratch_bytes = 0;
  return bound;
}

int LaunchLossGrad(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  GradRows rows = {};
  rows.dtype = args.in[0].dtype;
  rows.logits = args.in[0].data;
  rows.targets = args.in[1].as<const int32_t>();
  rows.lse = args.in[2].as<const float>();
  rows.dloss = args.in[3].as<const float>();
  rows.dlogits = args.out[0].data;
  rows.rows = s.rows;
  rows.classes = s.classes;
  return LaunchGradRows(rows, StreamOf(args));
}

// ---- linear_cross_entropy: x, w, targets -> loss_sum, count, correct, dx, dw.

// Chunks of logits stay in the cache where they fit; else they are long enough for the products to
// run well and for dw to be read and written only a few times.
constexpr int64_t kCacheBytes = int64_t{32} << 20;
constexpr int64_t kLeastChunk = 2048;  // rows
constexpr int64_t kMostChunk = 8192;
constexpr int64_t kMostChunks = 4;
constexpr int64_t kChunkMultiple = 128;

struct ChunkProducts {
  std::shared_ptr<const Product> logits, dx, dw_first, dw_more;
};

struct HeadState {
  int64_t rows = 0, width = 0, chunk = 0;
  int classes = 0;
  bool transpose_w = false, tf32 = false;
  DType dtype = DType::kF32;
  ChunkProducts full, last;  // of whole chunks, and of the last one where it is shorter
  // Bytes into scratch.
  int64_t logits = 0, workspace = 0;
};

HeadState HeadOf(const BindArgs& args) {
  HeadState s;
  s.rows = args.in[2].elements();
  s.width = args.in[0].shape.dim(-1);
  s.transpose_w = args.attrs->GetBool("transpose_w");
  s.tf32 = args.attrs->GetBool("tf32");
  s.classes = static_cast<int>(args.in[1].shape.dim(s.transpose_w ? 0 : 1));
  s.dtype = args.in[0].dtype;
  return s;
}

int64_t RowBytes(const HeadState& s) { return s.classes * static_cast<int64_t>(SizeOf(s.dtype)); }

// Rows of a chunk when at most `most` are wanted: equal chunks but for the rounding.
int64_t EvenChunk(int64_t rows, int64_t most) {
  if (rows <= most) return rows;
  return CeilDiv(CeilDiv(rows, CeilDiv(rows, most)), kChunkMultiple) * kChunkMultiple;
}

int64_t DefaultChunk(const HeadState& s) {
  const int64_t cached = kCacheBytes / RowBytes(s);
  const int64_t most = std::clamp(CeilDiv(s.rows, kMostChunks), kLeastChunk, kMostChunk);
  return EvenChunk(s.rows, std::max(cached, most));
}

// "default", or "chunk" and the greatest number of rows.
std::vector<std::string> HeadCandidates(const BindArgs& args) {
  const HeadState s = HeadOf(args);
  std::vector<std::string> all = {"default"};
  for (const int64_t most : {1024, 2048, 4096, 8192, 16384}) {
    if (most < s.rows) all.push_back("chunk" + std::to_string(most));
  }
  return all;
}

// The products of a chunk of `rows`; an error leaves *error set.
ChunkProducts ProductsOf(const HeadState& s, int64_t rows, int64_t* workspace, std::string* error) {
  const auto make = [&](ProductSpec spec) {
    spec.in = s.dtype;
    spec.tf32 = s.tf32;
    auto product = Product::Make(spec, "default", error);
    if (product != nullptr) *workspace = std::max(*workspace, product->workspace_bytes());
    return product;
  };
  ProductSpec logits{.m = rows, .n = s.classes, .k = s.width, .transpose_b = s.transpose_w};
  ProductSpec dx{.m = rows, .n = s.width, .k = s.classes, .transpose_b = !s.transpose_w};
  ProductSpec dw{.m = s.transpose_w ? s.classes : s.width,
                 .n = s.transpose_w ? s.width : s.classes,
                 .k = rows,
                 .transpose_a = true};
  logits.out = dx.out = s.dtype;
  dw.out = DType::kF32;
  ChunkProducts p;
  p.logits = make(logits);
  p.dx = make(dx);
  p.dw_first = make(dw);
  dw.accumulates = true;
  p.dw_more = rows < s.rows ? make(dw) : nullptr;
  return p;
}

int64_t OnBoundary(int64_t bytes) { return CeilDiv(bytes, 256) * 256; }

Bound BindHead(const std::string& candidate, const BindArgs& args) {
  auto s = std::make_shared<HeadState>(HeadOf(args));
  s->chunk = DefaultChunk(*s);
  if (candidate.compare(0, 5, "chunk") == 0) {
    const int64_t most = std::atoll(candidate.c_str() + 5);
    if (most <= 0) return {.error = "no candidate '" + candidate + "'"};
    s->chunk = EvenChunk(s->rows, most);
  }
  if (PrepareLossRows(s->dtype, s->classes) != 0) {
    return {.error = "the device has too little shared memory"};
  }
  s->logits = OnBoundary(s->rows * static_cast<int64_t>(sizeof(RowSums)));
  s->workspace = s->logits + OnBoundary(s->chunk * RowBytes(*s));
  int64_t workspace = 0;
  std::string error;
  if (s->rows > 0) {
    s->full = ProductsOf(*s, s->chunk, &workspace, &error);
    const int64_t rest = s->rows % s->chunk;
    if (error.empty() && rest > 0) s->last = ProductsOf(*s, rest, &workspace, &error);
  }
  if (!error.empty()) return {.error = error};
  Bound bound;
  bound.scratch_bytes = s->workspace + workspace;
  bound.state = std::move(s);
  return bound;
}

// Rows [row, row + rows): the logits, their loss and gradient in the same place, dx and dw.
int LaunchChunk(const HeadState& s, const KernelArgs& args, int64_t row, int64_t rows) {
  const cudaStream_t stream = StreamOf(args);
  auto* const scratch = static_cast<char*>(args.scratch);
  const ChunkProducts& p = rows == s.chunk ? s.full : s.last;
  const int64_t offset = row * s.width * static_cast<int64_t>(SizeOf(s.dtype));
  const void* const x = static_cast<const char*>(args.in[0].data) + offset;
  void* const dx = static_cast<char*>(args.out[3].data) + offset;
  void* const logits = scratch + s.logits;
  const auto multiply = [&](const Product& product, const void* a, const void* b, void* c) {
    cuda::ProductOperands o;
    o.a = a;
    o.b = b;
    o.c = c;
    o.workspace = scratch + s.workspace;
    return product.Launch(o, stream);
  };
  if (const int error = multiply(*p.logits, x, args.in[1].data, logits); error != 0) return error;
  LossRows loss = {};
  loss.dtype = s.dtype;
  loss.logits = loss.dlogits = logits;
  loss.targets = args.in[2].as<const int32_t>() + row;
  loss.sums = reinterpret_cast<RowSums*>(scratch) + row;
  loss.rows = rows;
  loss.classes = s.classes;
  if (const int error = LaunchLossRows(loss, stream); error != 0) return error;
  if (const int error = multiply(*p.dx, logits, args.in[1].data, dx); error != 0) return error;
  return multiply(row == 0 ? *p.dw_first : *p.dw_more, s.transpose_w ? logits : x,
                  s.transpose_w ? x : logits, args.out[4].data);
}

int LaunchHead(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const HeadState*>(state);
  const cudaStream_t stream = StreamOf(args);
  if (s.rows == 0) {
    const int64_t bytes = args.out[4].elements() * static_cast<int64_t>(sizeof(float));
    cudaMemsetAsync(args.out[4].data, 0, static_cast<size_t>(bytes), stream);
  }
  for (int64_t row = 0; row < s.rows; row += s.chunk) {
    const int error = LaunchChunk(s, args, row, std::min(s.chunk, s.rows - row));
    if (error != 0) return error;
  }
  return LaunchRowSums(static_cast<const RowSums*>(args.scratch), s.rows, args.out[0].as<float>(),
                       args.out[1].as<float>(), args.out[2].as<float>(), stream);
}

}  // namespace

void RegisterLossCuda(KernelTable* table) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  table->Add("cross_entropy", kCuda, {nullptr, BindLoss, LaunchLoss, true});
  table->Add("cross_entropy_grad", kCuda, {nullptr, BindLossGrad, LaunchLossGrad, true});
  table->Add("linear_cross_entropy", kCuda, {HeadCandidates, BindHead, LaunchHead, true});
}

}  // namespace weft
