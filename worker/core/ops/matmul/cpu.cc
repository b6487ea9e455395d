// CPU kernels of the products. Work is cut by shape only: rows in tiles of kRowTile, columns in
// blocks whose packed weights stay in the second cache, a weight gradient in blocks of results,
// each with all its rows.
#include <algorithm>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/gemm.h"

namespace weft {
namespace {

constexpr int64_t kRowTile = 128;
constexpr int64_t kPackedFloats = 128 * 1024;  // of packed weights in use at once: 512 KiB

struct LinearState {
  int64_t m = 0, k = 0, n = 0;
  bool transpose_w = false;
  int64_t block = 0;  // columns that are packed and multiplied at once, a multiple of kGemmPanel
};

Bound BindLinear(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<LinearState>();
  const Shape &x = args.in[0].shape, &y = args.out[0].shape;
  state->k = x.dim(-1);
  state->n = y.dim(-1);
  state->m = state->n == 0 ? 0 : y.elements() / state->n;
  state->transpose_w = args.attrs->GetBool("transpose_w");
  const int64_t fitting = kPackedFloats / std::max<int64_t>(state->k, 1) / kGemmPanel * kGemmPanel;
  state->block =
      std::clamp(fitting, kGemmPanel, RoundUp(std::max<int64_t>(state->n, 1), kGemmPanel));
  Bound bound;
  bound.scratch_bytes = state->block * state->k * static_cast<int64_t>(sizeof(float));
  bound.state = std::move(state);
  return bound;
}

// Packs columns [first, first + columns) of w, a panel a tile.
void PackWeights(const LinearState& s, const float* w, int64_t first, int64_t columns,
                 float* packed, TileRunner* tiles) {
  const int64_t row_stride = s.transpose_w ? 1 : s.n;
  const int64_t column_stride = s.transpose_w ? s.k : 1;
  tiles->For((columns + kGemmPanel - 1) / kGemmPanel, [&](int64_t panel, int) {
    const int64_t column = panel * kGemmPanel;
    PackPanel(w + (first + column) * column_stride, row_stride, column_stride, s.k,
              std::min(kGemmPanel, columns - column), packed + column * s.k);
  });
}

// What follows the product y = x w; each is left out when null.
struct Following {
  const float* bias = nullptr;   // is added
  float* gelu = nullptr;         // gets gelu(y)
  const float* slope = nullptr;  // y is multiplied by gelu's slope at it
};

void RunLinear(const LinearState& s, const KernelArgs& args, float* y, const Following& then) {
  const float* x = args.in[0].as<const float>();
  float* packed = static_cast<float*>(args.scratch);
  for (int64_t first = 0; first < s.n && s.m > 0; first += s.block) {
    const int64_t columns = std::min(s.block, s.n - first);
    PackWeights(s, args.in[1].as<const float>(), first, columns, packed, args.tiles);
    args.tiles->For((s.m + kRowTile - 1) / kRowTile, [&](int64_t tile, int) {
      const int64_t row = tile * kRowTile;
      Product p;
      p.a = x + row * s.k;
      p.a_stride = std::max<int64_t>(s.k, 1);
      p.b = packed;
      p.b_stride = s.k * kGemmPanel;
      p.m = std::min(kRowTile, s.m - row);
      p.n = columns;
      p.k = s.k;
      p.c = y + row * s.n + first;
      p.c_stride = s.n;
      const int64_t at = row * s.n + first;
      p.bias = then.bias == nullptr ? nullptr : then.bias + first;
      p.gelu = then.gelu == nullptr ? nullptr : then.gelu + at;
      p.slope = then.slope == nullptr ? nullptr : then.slope + at;
      Multiply(p);
    });
  }
}

const float* BiasOf(const KernelArgs& args) {
  return args.in_count > 2 ? args.in[2].as<const float>() : nullptr;
}

int LaunchLinear(const void* state, const KernelArgs& args) {
  RunLinear(*static_cast<const LinearState*>(state), args, args.out[0].as<float>(),
            {.bias = BiasOf(args)});
  return 0;
}

int LaunchLinearGelu(const void* state, const KernelArgs& args) {
  RunLinear(*static_cast<const LinearState*>(state), args, args.out[1].as<float>(),
            {.bias = BiasOf(args), .gelu = args.out[0].as<float>()});
  return 0;
}

int LaunchLinearGradGelu(const void* state, const KernelArgs& args) {
  RunLinear(*static_cast<const LinearState*>(state), args, args.out[0].as<float>(),
            {.slope = args.in[2].as<const float>()});
  return 0;
}

// Columns of a tile's sums, and rows that are added before their sum joins the others'.
constexpr int64_t kSumColumns = 64;
constexpr int64_t kSumRows = 64;

void SumColumns(const float* x, int64_t rows, int64_t n, float* sums, TileRunner* tiles) {
  tiles->For((n + kSumColumns - 1) / kSumColumns, [&](int64_t tile, int) {
    const int64_t first = tile * kSumColumns, columns = std::min(kSumColumns, n - first);
    std::fill_n(sums + first, columns, 0.0f);
    for (int64_t begin = 0; begin < rows; begin += kSumRows) {
      float part[kSumColumns] = {};
      for (int64_t row = begin; row < std::min(rows, begin + kSumRows); ++row) {
        const float* __restrict from = x + row * n + first;
        for (int64_t i = 0; i < columns; ++i) part[i] += from[i];
      }
      for (int64_t i = 0; i < columns; ++i) sums[first + i] += part[i];
    }
  });
}

int LaunchLinearGradGeluBias(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const LinearState*>(state);
  LaunchLinearGradGelu(state, args);
  SumColumns(args.out[0].as<const float>(), s.m, s.n, args.out[1].as<float>(), args.tiles);
  return 0;
}

// c[p, q] = sum over rows of left[row, p] * right[row, q], in blocks of c.
struct GradWState {
  int64_t rows = 0, p = 0, q = 0;
  bool swap = false;  // left is dy, right is x: dw is stored [N, K]
  int64_t thread_floats = 0;
};

// Blocks of c: large enough that packing is a few percent of the work, small enough to share out.
constexpr int64_t kBlockP = 128;
constexpr int64_t kBlockQ = 128;

Bound BindGradW(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<GradWState>();
  state->swap = args.attrs->GetBool("transpose_w");
  state->p = args.out[0].shape.dim(0);
  state->q = args.out[0].shape.dim(1);
  const Shape& x = args.in[0].shape;
  state->rows = Shape(x.begin(), x.end() - 1).elements();
  state->thread_floats = RowProductScratch(kBlockP, kBlockQ);
  Bound bound;
  bound.scratch_bytes = args.threads * state->thread_floats * static_cast<int64_t>(sizeof(float));
  bound.state = std::move(state);
  return bound;
}

int LaunchGradW(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const GradWState*>(state);
  const float* left = args.in[s.swap ? 1 : 0].as<const float>();
  const float* right = args.in[s.swap ? 0 : 1].as<const float>();
  float* c = args.out[0].as<float>();
  const int64_t across = (s.q + kBlockQ - 1) / kBlockQ, down = (s.p + kBlockP - 1) / kBlockP;
  args.tiles->For(across * down, [&](int64_t tile, int thread) {
    const int64_t p0 = tile / across * kBlockP, q0 = tile % across * kBlockQ;
    RowProduct r;
    r.left = left + p0;
    r.left_stride = s.p;
    r.right = right + q0;
    r.right_stride = s.q;
    r.rows = s.rows;
    r.p = std::min(kBlockP, s.p - p0);
    r.q = std::min(kBlockQ, s.q - q0);
    r.c = c + p0 * s.q + q0;
    r.c_stride = s.q;
    MultiplyRows(r, static_cast<float*>(args.scratch) + thread * s.thread_floats);
  });
  return 0;
}

struct MatmulState {
  int64_t batch = 0, m = 0, k = 0, n = 0;
  bool transpose_a = false, transpose_b = false, shared_b = false;
  int64_t thread_floats = 0;
};

Bound BindMatmul(const std::string&, const BindArgs& args) {
  auto state = std::make_shared<MatmulState>();
  const Shape& y = args.out[0].shape;
  state->m = y.dim(-2);
  state->n = y.dim(-1);
  state->batch = Shape(y.begin(), y.end() - 2).elements();
  state->transpose_a = args.attrs->GetBool("transpose_a");
  state->transpose_b = args.attrs->GetBool("transpose_b");
  state->k = args.in[0].shape.dim(state->transpose_a ? -2 : -1);
  state->shared_b = args.in[1].shape.rank() < args.in[0].shape.rank();
  state->thread_floats = (kBlockP + kBlockQ) * state->k;
  Bound bound;
  bound.scratch_bytes = args.threads * state->thread_floats * static_cast<int64_t>(sizeof(float));
  bound.state = std::move(state);
  return bound;
}

int LaunchMatmul(const void* state, const KernelArgs& args) {
  const auto& s = *static_cast<const MatmulState*>(state);
  const int64_t across = (s.n + kBlockQ - 1) / kBlockQ, down = (s.m + kBlockP - 1) / kBlockP;
  args.tiles->For(s.batch * across * down, [&](int64_t tile, int thread) {
    const int64_t item = tile / (across * down), block = tile % (across * down);
    const int64_t i0 = block / across * kBlockP, j0 = block % across * kBlockQ;
    const float* a = args.in[0].as<const float>() + item * s.m * s.k;
    const float* b = args.in[1].as<const float>() + (s.shared_b ? 0 : item * s.k * s.n);
    float* strips = static_cast<float*>(args.scratch) + thread * s.thread_floats;
    float* panels = strips + kBlockP * s.k;
    Product p;
    p.m = std::min(kBlockP, s.m - i0);
    p.n = std::min(kBlockQ, s.n - j0);
    p.k = s.k;
    const int64_t row_stride = s.transpose_b ? 1 : s.n, column_stride = s.transpose_b ? s.k : 1;
    for (int64_t j = 0; j < p.n; j += kGemmPanel) {
      PackPanel(b + (j0 + j) * column_stride, row_stride, column_stride, s.k,
                std::min(kGemmPanel, p.n - j), panels + j * s.k);
    }
    for (int64_t i = 0; s.transpose_a && i < p.m; i += kGemmStrip) {
      PackStrip(a + i0 + i, s.m, s.k, std::min(kGemmStrip, p.m - i), strips + i * s.k);
    }
    p.a = s.transpose_a ? strips : a + i0 * s.k;
    p.a_stride = s.transpose_a ? 0 : std::max<int64_t>(s.k, 1);
    p.b = panels;
    p.b_stride = s.k * kGemmPanel;
    p.c = args.out[0].as<float>() + item * s.m * s.n + i0 * s.n + j0;
    p.c_stride = s.n;
    Multiply(p);
  });
  return 0;
}

}  // namespace

void RegisterMatmulCpu(KernelTable* table) {
  table->Add("matmul", DeviceKind::kCpu, {nullptr, BindMatmul, LaunchMatmul});
  table->Add("linear", DeviceKind::kCpu, {nullptr, BindLinear, LaunchLinear});
  table->Add("linear_gelu", DeviceKind::kCpu, {nullptr, BindLinear, LaunchLinearGelu});
  table->Add("linear_grad_gelu", DeviceKind::kCpu, {nullptr, BindLinear, LaunchLinearGradGelu});
  table->Add("linear_grad_gelu_bias", DeviceKind::kCpu,
             {nullptr, BindLinear, LaunchLinearGradGeluBias});
  table->Add("linear_grad_w", DeviceKind::kCpu, {nullptr, BindGradW, LaunchGradW});
}

}  // namespace weft
