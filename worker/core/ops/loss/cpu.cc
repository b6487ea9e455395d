// CPU kernels of the losses. Rows go in tiles of kRows, whose sums are kept in double and added in
// the tiles' order.
#include <algorithm>
#include <limits>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/loss/cpu.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "hwy/highway.h"

#include "worker/core/device/scalar_math.h"
#include "worker/core/device/vector_math-inl.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/gemm.h"

#ifndef WEFT_LOSS_TYPES_
#define WEFT_LOSS_TYPES_
namespace weft {

struct LossSums {
  double loss = 0, count = 0, correct = 0;
};

}  // namespace weft
#endif  // WEFT_LOSS_TYPES_

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using V = hn::Vec<Tag>;
constexpr int64_t kLanes = hn::MaxLanes(Tag());

HWY_INLINE auto Tail(int64_t left) { return hn::FirstN(Tag(), static_cast<size_t>(left)); }

HWY_INLINE float Greatest(const float* row, int64_t n) {
  const Tag d;
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  V top = lowest;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) top = hn::Max(top, hn::LoadU(d, row + j));
  if (j < n) {
    const auto mask = Tail(n - j);
    top = hn::Max(top, hn::IfThenElse(mask, hn::MaskedLoad(mask, d, row + j), lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// Log of the sum of the row's exponentials.
HWY_INLINE float LogSumExp(const float* row, int64_t n) {
  const Tag d;
  const float top = Greatest(row, n);
  const V t = hn::Set(d, top);
  V sum = hn::Zero(d);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    sum = hn::Add(sum, FastExp(d, hn::Sub(hn::LoadU(d, row + j), t)));
  }
  if (j < n) {
    const auto mask = Tail(n - j);
    const V e = FastExp(d, hn::Sub(hn::MaskedLoad(mask, d, row + j), t));
    sum = hn::Add(sum, hn::IfThenElseZero(mask, e));
  }
  const float total = hn::GetLane(hn::SumOfLanes(d, sum));
  // Not a number stays one: the logarithm is for positive, normal values.
  return total >= 1.0f ? static_cast<float>(top + ExactLog(total)) : top - top + total;
}

// True when the row's first greatest element is at `target`.
HWY_INLINE bool IsFirstGreatest(const float* row, int64_t n, int64_t target) {
  const float value = row[target];
  for (int64_t j = 0; j < target; ++j) {
    if (row[j] >= value) return false;
  }
  for (int64_t j = target + 1; j < n; ++j) {
    if (row[j] > value) return false;
  }
  return true;
}

void LossRows(const float* logits, const int32_t* targets, int64_t rows, int64_t n, float* lse,
              LossSums* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = logits + i * n;
    lse[i] = LogSumExp(row, n);
    const int64_t target = targets[i];
    if (target < 0 || target >= n) continue;
    sums->loss += static_cast<double>(lse[i] - row[target]);
    sums->count += 1;
    sums->correct += IsFirstGreatest(row, n, target) ? 1 : 0;
  }
}

// May write over the logits.
void GradRows(const float* logits, const int32_t* targets, const float* lse, float dloss,
              int64_t rows, int64_t n, float* dlogits) {
  const Tag d;
  const V scale = hn::Set(d, dloss);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = logits + i * n;
    float* out = dlogits + i * n;
    const int64_t target = targets[i];
    if (target < 0 || target >= n) {
      std::fill_n(out, n, 0.0f);
      continue;
    }
    const V l = hn::Set(d, lse[i]);
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) {
      const V e = FastExp(d, hn::Sub(hn::LoadU(d, row + j), l));
      hn::StoreU(hn::Mul(e, scale), d, out + j);
    }
    if (j < n) {
      const auto mask = Tail(n - j);
      const V e = FastExp(d, hn::Sub(hn::MaskedLoad(mask, d, row + j), l));
      hn::BlendedStore(hn::Mul(e, scale), mask, d, out + j);
    }
    out[target] -= dloss;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(LossRows);
HWY_EXPORT(GradRows);

namespace {

constexpr int64_t kRows = 64;

int64_t Tiles(int64_t rows) { return (rows + kRows - 1) / kRows; }

void StoreSums(const LossSums* partial, int64_t tiles, const ArrayRef* out) {
  LossSums sums;
  for (int64_t i = 0; i < tiles; ++i) {
    sums.loss += partial[i].loss;
    sums.count += partial[i].count;
    sums.correct += partial[i].correct;
  }
  *out[0].as<float>() = static_cast<float>(sums.loss);
  *out[1].as<float>() = static_cast<float>(sums.count);
  *out[2].as<float>() = static_cast<float>(sums.correct);
}

struct LossState {
  int64_t rows = 0, classes = 0;
};

Bound BindLoss(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<LossState>();
  state->rows = args.in[1].elements();
  state->classes = args.in[0].shape.dim(-1);
  const int64_t scratch = Tiles(state->rows) * static_cast<int64_t>(sizeof(LossSums));
  return {std::move(state), scratch, ""};
}

int LaunchLoss(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  auto* partial = static_cast<LossSums*>(args.scratch);
  args.tiles->For(Tiles(s.rows), [&](int64_t tile, int) {
    const int64_t row = tile * kRows;
    partial[tile] = LossSums();
    HWY_DYNAMIC_DISPATCH(LossRows)
    (args.in[0].as<const float>() + row * s.classes, args.in[1].as<const int32_t>() + row,
     std::min(kRows, s.rows - row), s.classes, args.out[3].as<float>() + row, partial + tile);
  });
  StoreSums(partial, Tiles(s.rows), args.out);
  return 0;
}

int LaunchLossGrad(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LossState*>(state);
  args.tiles->For(Tiles(s.rows), [&](int64_t tile, int) {
    const int64_t row = tile * kRows;
    HWY_DYNAMIC_DISPATCH(GradRows)
    (args.in[0].as<const float>() + row * s.classes, args.in[1].as<const int32_t>() + row,
     args.in[2].as<const float>() + row, *args.in[3].as<const float>(),
     std::min(kRows, s.rows - row), s.classes, args.out[0].as<float>() + row * s.classes);
  });
  return 0;
}

// linear_cross_entropy: rows in chunks; of a chunk the logits, then their gradient in the same
// place, then its dx and its share of dw.
constexpr int64_t kChunk = 512;
constexpr int64_t kPackedFloats = 128 * 1024;
constexpr int64_t kBlock = 128;  // of dw, both ways

struct HeadState {
  int64_t rows = 0, width = 0, classes = 0;
  bool transpose_w = false;
  int64_t class_block = 0, width_block = 0;  // columns of w and of w' that are packed at once
  // Floats into scratch.
  int64_t logits = 0, lse = 0, w = 0, w_back = 0, grad = 0, grad_thread = 0;
};

int64_t BlockOf(int64_t columns, int64_t k) {
  const int64_t fitting = kPackedFloats / std::max<int64_t>(k, 1) / kGemmPanel * kGemmPanel;
  return std::clamp(fitting, kGemmPanel, RoundUp(std::max<int64_t>(columns, 1), kGemmPanel));
}

Bound BindHead(const std::string&, const BindArgs& args) {
  auto s = std::make_shared<HeadState>();
  s->rows = args.in[2].elements();
  s->width = args.in[0].shape.dim(-1);
  s->transpose_w = args.attrs->GetBool("transpose_w");
  s->classes = args.in[1].shape.dim(s->transpose_w ? 0 : 1);
  s->class_block = BlockOf(s->classes, s->width);
  s->width_block = BlockOf(s->width, s->classes);
  int64_t floats =
      RoundUp(Tiles(s->rows) * static_cast<int64_t>(sizeof(LossSums) / sizeof(float)), 16);
  const auto take = [&floats](int64_t count) {
    const int64_t at = floats;
    floats += RoundUp(count, 16);
    return at;
  };
  s->logits = take(kChunk * s->classes);
  s->lse = take(kChunk);
  s->w = take(s->class_block * s->width);
  s->w_back = take(s->width_block * s->classes);
  s->grad_thread = RowProductScratch(kBlock, kBlock);
  s->grad = take(s->grad_thread * args.threads);
  return {std::move(s), floats * static_cast<int64_t>(sizeof(float)), ""};
}

struct HeadPass {
  const HeadState& s;
  const KernelArgs& args;
  int64_t row = 0, rows = 0;  // the chunk
  float* floats() const { return static_cast<float*>(args.scratch); }
};

// c[rows, columns of the right operand] = a times w (or w', where `back`), in blocks of packed
// columns. A right operand of one block is packed for the first chunk only.
void MultiplyByWeights(const HeadPass& p, bool back, const float* a, float* c) {
  const HeadState& s = p.s;
  const int64_t k = back ? s.classes : s.width, n = back ? s.width : s.classes;
  const int64_t block = back ? s.width_block : s.class_block;
  float* packed = p.floats() + (back ? s.w_back : s.w);
  const float* w = p.args.in[1].as<const float>();
  const bool by_column = s.transpose_w != back;  // columns of the right operand are contiguous
  const int64_t row_stride = by_column ? 1 : n, column_stride = by_column ? k : 1;
  for (int64_t first = 0; first < n; first += block) {
    const int64_t columns = std::min(block, n - first);
    if (p.row == 0 || n > block) {
      p.args.tiles->For((columns + kGemmPanel - 1) / kGemmPanel, [&](int64_t panel, int) {
        const int64_t column = panel * kGemmPanel;
        PackPanel(w + (first + column) * column_stride, row_stride, column_stride, k,
                  std::min(kGemmPanel, columns - column), packed + column * k);
      });
    }
    p.args.tiles->For(Tiles(p.rows), [&](int64_t tile, int) {
      Product product;
      product.a = a + tile * kRows * k;
      product.a_stride = std::max<int64_t>(k, 1);
      product.b = packed;
      product.b_stride = k * kGemmPanel;
      product.m = std::min(kRows, p.rows - tile * kRows);
      product.n = columns;
      product.k = k;
      product.c = c + tile * kRows * n + first;
      product.c_stride = n;
      Multiply(product);
    });
  }
}

// Logits become gradients; their sums go to the chunk's tiles.
void LossOfChunk(const HeadPass& p, LossSums* partial) {
  const HeadState& s = p.s;
  float* logits = p.floats() + s.logits;
  float* lse = p.floats() + s.lse;
  const int32_t* targets = p.args.in[2].as<const int32_t>() + p.row;
  p.args.tiles->For(Tiles(p.rows), [&](int64_t tile, int) {
    const int64_t row = tile * kRows, rows = std::min(kRows, p.rows - row);
    float* tile_logits = logits + row * s.classes;
    LossSums* sums = partial + p.row / kRows + tile;
    *sums = LossSums();
    HWY_DYNAMIC_DISPATCH(LossRows)(tile_logits, targets + row, rows, s.classes, lse + row, sums);
    HWY_DYNAMIC_DISPATCH(GradRows)
    (tile_logits, targets + row, lse + row, 1.0f, rows, s.classes, tile_logits);
  });
}

void AddToDw(const HeadPass& p, float* dw) {
  const HeadState& s = p.s;
  const float* x = p.args.in[0].as<const float>() + p.row * s.width;
  const float* d = p.floats() + s.logits;
  const int64_t down = s.transpose_w ? s.classes : s.width,
                across = s.transpose_w ? s.width : s.classes;
  const int64_t blocks = (across + kBlock - 1) / kBlock;
  p.args.tiles->For(blocks * ((down + kBlock - 1) / kBlock), [&](int64_t tile, int thread) {
    const int64_t p0 = tile / blocks * kBlock, q0 = tile % blocks * kBlock;
    RowProduct r;
    r.left = (s.transpose_w ? d : x) + p0;
    r.left_stride = down;
    r.right = (s.transpose_w ? x : d) + q0;
    r.right_stride = across;
    r.rows = p.rows;
    r.p = std::min(kBlock, down - p0);
    r.q = std::min(kBlock, across - q0);
    r.c = dw + p0 * across + q0;
    r.c_stride = across;
    r.accumulate = p.row != 0;
    MultiplyRows(r, p.floats() + s.grad + thread * s.grad_thread);
  });
}

int LaunchHead(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const HeadState*>(state);
  auto* partial = static_cast<LossSums*>(args.scratch);
  if (s.rows == 0) std::fill_n(args.out[4].as<float>(), args.out[4].elements(), 0.0f);
  for (int64_t row = 0; row < s.rows; row += kChunk) {
    const HeadPass pass{s, args, row, std::min(kChunk, s.rows - row)};
    float* logits = pass.floats() + s.logits;
    MultiplyByWeights(pass, false, args.in[0].as<const float>() + row * s.width, logits);
    LossOfChunk(pass, partial);
    MultiplyByWeights(pass, true, logits, args.out[3].as<float>() + row * s.width);
    AddToDw(pass, args.out[4].as<float>());
  }
  StoreSums(partial, Tiles(s.rows), args.out);
  return 0;
}

}  // namespace

void RegisterLossCpu(KernelTable* table) {
  table->Add("cross_entropy", DeviceKind::kCpu, {nullptr, BindLoss, LaunchLoss});
  table->Add("cross_entropy_grad", DeviceKind::kCpu, {nullptr, BindLoss, LaunchLossGrad});
  table->Add("linear_cross_entropy", DeviceKind::kCpu, {nullptr, BindHead, LaunchHead});
}

}  // namespace weft
#endif  // HWY_ONCE
