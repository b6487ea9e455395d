// Reductions in an order that the shape fixes: leaves of up to 1024 elements in four vectors each,
// met pairwise in a binary tree. Long reductions are cut into segments, reduced by different tiles
// into scratch and met in the same kind of tree.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/reduce/cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants this order.
#include "hwy/highway.h"

#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/ops/reduce/state.h"
#include "worker/core/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

constexpr int64_t kLeaf = 1024;

template <typename T>
T MaxKeepNanScalar(T a, T b) {
  return a > b || a != a ? a : b;
}

struct SumOf {
  template <typename T>
  static constexpr T kStart = T{0};
  template <class V>
  static HWY_INLINE V Of(V a, V b) {
    return hn::Add(a, b);
  }
  template <typename T>
  static HWY_INLINE T OfScalar(T a, T b) {
    return a + b;
  }
};
struct MaxOf {
  template <typename T>
  static constexpr T kStart = -std::numeric_limits<T>::infinity();
  template <class V>
  static HWY_INLINE V Of(V a, V b) {
    return MaxKeepNan(a, b);
  }
  template <typename T>
  static HWY_INLINE T OfScalar(T a, T b) {
    return MaxKeepNanScalar(a, b);
  }
};

// Lanes in halves: lane i with lane i + lanes/2, and so on.
template <class R, class D, class V>
HWY_INLINE hn::TFromD<D> ReduceLanes(D d, V v) {
  HWY_ALIGN hn::TFromD<D> lane[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)];
  hn::Store(v, d, lane);
  for (size_t half = hn::Lanes(d) / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lane[i] = R::OfScalar(lane[i], lane[i + half]);
  }
  return lane[0];
}

// One leaf.
template <class R, typename T>
T ReduceLeaf(const T* x, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto start = hn::Set(d, R::template kStart<T>);
  auto a = start, b = start, c = start, e = start;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = R::Of(a, hn::LoadU(d, x + i));
    b = R::Of(b, hn::LoadU(d, x + i + lanes));
    c = R::Of(c, hn::LoadU(d, x + i + 2 * lanes));
    e = R::Of(e, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) a = R::Of(a, hn::LoadU(d, x + i));
  if (i < count) {
    const auto mask = hn::FirstN(d, count - i);
    b = R::Of(b, hn::IfThenElse(mask, hn::MaskedLoad(mask, d, x + i), start));
  }
  return ReduceLanes<R>(d, R::Of(R::Of(a, b), R::Of(c, e)));
}

// Values that arrive one by one, met as in a binary tree over their numbers.
template <class R, typename T>
class Tree {
 public:
  void Add(T value) {
    for (uint64_t n = count_++; n & 1; n >>= 1) value = R::OfScalar(level_[--depth_], value);
    level_[depth_++] = value;
  }
  T Finish() {
    if (depth_ == 0) return R::template kStart<T>;
    T value = level_[--depth_];
    while (depth_ > 0) value = R::OfScalar(level_[--depth_], value);
    return value;
  }

 private:
  T level_[64];
  int depth_ = 0;
  uint64_t count_ = 0;
};

// Where result row `o` starts.
inline int64_t OffsetOf(const Walk& walk, int64_t index) {
  int64_t offset = 0;
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    offset += index % walk.dims[axis] * walk.strides[0][axis];
    index /= walk.dims[axis];
  }
  return offset;
}

template <typename T>
T Finish(const ReduceState& s, T value) {
  return s.kind == Reduction::kMean ? value / static_cast<T>(s.count) : value;
}

// Results of single columns: elements [begin, end) of result `o`'s sequence.
template <class R, typename T>
T ReduceSequence(const ReduceState& s, const T* base, int64_t begin, int64_t end) {
  HWY_ALIGN T buffer[kLeaf];
  Tree<R, T> tree;
  for (; begin < end; begin += kLeaf) {
    const int64_t count = std::min(kLeaf, end - begin);
    tree.Add(ReduceLeaf<R>(WalkRun(s.reduced, 0, base, begin, count, buffer), count));
  }
  return tree.Finish();
}

template <class R, typename T>
void ReduceSingles(const ReduceState& s, const KernelArgs& args) {
  const T* const in = args.in[0].as<T>();
  T* const out = args.out[0].as<T>();
  T* const partial = s.segments == 1 ? out : static_cast<T*>(args.scratch);
  const int64_t units = s.outer * s.segments;
  const int64_t group = std::max<int64_t>(1, kTileElements / std::max<int64_t>(1, s.segment));
  args.tiles->For(CeilDiv(units, group), [&](int64_t tile, int) {
    const int64_t last = std::min(units, (tile + 1) * group);
    for (int64_t unit = tile * group; unit < last; ++unit) {
      const int64_t begin = unit % s.segments * s.segment;
      const int64_t end = std::min(begin + s.segment, s.count);
      const T* base = in + OffsetOf(s.kept, unit / s.segments);
      const T value = ReduceSequence<R>(s, base, begin, end);
      partial[unit] = s.segments == 1 ? Finish(s, value) : value;
    }
  });
  if (s.segments == 1) return;
  args.tiles->For(s.outer, [&](int64_t o, int) {
    Tree<R, T> tree;
    for (int64_t i = 0; i < s.segments; ++i) tree.Add(partial[o * s.segments + i]);
    out[o] = Finish(s, tree.Finish());
  });
}

// to[i] = R(to[i], from[i]...), the rows of `from` in pairs.
template <class R, typename T, int kRows>
HWY_INLINE void Fold(T* HWY_RESTRICT to, const T* const (&from)[4], size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto fold = [&](auto load, size_t i) HWY_ATTR {
    if constexpr (kRows == 4) {
      const auto first = R::Of(load(from[0] + i), load(from[1] + i));
      return R::Of(load(to + i), R::Of(first, R::Of(load(from[2] + i), load(from[3] + i))));
    } else {
      return R::Of(load(to + i), load(from[0] + i));
    }
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(fold([&](const T* p) HWY_ATTR { return hn::LoadU(d, p); }, i), d, to + i);
  }
  if (i == count) return;
  const size_t rest = count - i;
  StoreFirst(d, fold([&](const T* p) HWY_ATTR { return LoadFirst(d, p, rest); }, i), to + i, rest);
}

constexpr int64_t kColumns = 512;

// Rows [begin, end) of result `o`, columns [column, column + width), into `to`.
template <class R, typename T>
void ReduceRows(const ReduceState& s, const T* base, int64_t begin, int64_t end, int64_t column,
                int64_t width, T* to) {
  HWY_ALIGN T buffer[4][kColumns];
  std::fill_n(to, width, R::template kStart<T>);
  const auto row = [&](int64_t r, int slot) {
    return WalkRun(s.column, 0, base + OffsetOf(s.reduced, r), column, width, buffer[slot]);
  };
  int64_t r = begin;
  for (; r + 4 <= end; r += 4) {
    const T* const from[4] = {row(r, 0), row(r + 1, 1), row(r + 2, 2), row(r + 3, 3)};
    Fold<R, T, 4>(to, from, width);
  }
  for (; r < end; ++r) {
    const T* const from[4] = {row(r, 0), nullptr, nullptr, nullptr};
    Fold<R, T, 1>(to, from, width);
  }
}

template <class R, typename T>
void ReduceColumns(const ReduceState& s, const KernelArgs& args) {
  const T* const in = args.in[0].as<T>();
  T* const out = args.out[0].as<T>();
  T* const partial = s.segments == 1 ? out : static_cast<T*>(args.scratch);
  const int64_t strips = CeilDiv(s.columns, kColumns);
  const auto finish = [&](T* to, int64_t width) {
    if (s.kind != Reduction::kMean) return;
    for (int64_t i = 0; i < width; ++i) to[i] = Finish(s, to[i]);
  };
  args.tiles->For(s.outer * s.segments * strips, [&](int64_t tile, int) {
    const int64_t column = tile % strips * kColumns;
    const int64_t width = std::min(kColumns, s.columns - column);
    const int64_t unit = tile / strips;
    const int64_t begin = unit % s.segments * s.segment;
    T* to = partial + unit * s.columns + column;
    ReduceRows<R>(s, in + OffsetOf(s.kept, unit / s.segments), begin,
                  std::min(begin + s.segment, s.count), column, width, to);
    if (s.segments == 1) finish(to, width);
  });
  if (s.segments == 1) return;
  args.tiles->For(s.outer * strips, [&](int64_t tile, int) {
    const int64_t column = tile % strips * kColumns;
    const int64_t width = std::min(kColumns, s.columns - column);
    T* const rows = partial + tile / strips * s.segments * s.columns + column;
    for (int64_t step = 1; step < s.segments; step *= 2) {
      for (int64_t i = 0; i + step < s.segments; i += 2 * step) {
        const T* const from[4] = {rows + (i + step) * s.columns, nullptr, nullptr, nullptr};
        Fold<R, T, 1>(rows + i * s.columns, from, width);
      }
    }
    T* const to = out + tile / strips * s.columns + column;
    std::copy_n(rows, width, to);
    finish(to, width);
  });
}

template <class R, typename T>
void Reduce(const ReduceState& s, const KernelArgs& args) {
  if (s.columns == 1) {
    ReduceSingles<R, T>(s, args);
  } else {
    ReduceColumns<R, T>(s, args);
  }
}

void LaunchReduce(const ReduceState& s, const KernelArgs& args) {
  const bool wide = s.dtype == DType::kF64;
  if (s.kind == Reduction::kMax) {
    wide ? Reduce<MaxOf, double>(s, args) : Reduce<MaxOf, float>(s, args);
  } else {
    wide ? Reduce<SumOf, double>(s, args) : Reduce<SumOf, float>(s, args);
  }
}

// The greatest of a row.
inline float RowMax(const float* x, int64_t width) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < width; i += kLeaf) {
    most = MaxKeepNanScalar(most, ReduceLeaf<MaxOf>(x + i, std::min(kLeaf, width - i)));
  }
  return most;
}

// y[i] = f(x[i]).
template <class F>
HWY_INLINE void Map(const float* x, float* y, size_t count, F&& f) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i);
  if (i < count) StoreFirst(d, f(LoadFirst(d, x + i, count - i)), y + i, count - i);
}

inline void Softmax(const float* x, float* y, int64_t width, bool log) {
  const hn::ScalableTag<float> d;
  const auto most = hn::Set(d, RowMax(x, width));
  HWY_ALIGN float buffer[kLeaf];
  Tree<SumOf, float> tree;
  for (int64_t i = 0; i < width; i += kLeaf) {
    const int64_t count = std::min(kLeaf, width - i);
    float* const to = log ? buffer : y + i;
    Map(x + i, to, count, [&](auto v) HWY_ATTR { return ExpOfNegative(d, hn::Sub(v, most)); });
    tree.Add(ReduceLeaf<SumOf>(to, count));
  }
  const auto sum = hn::Set(d, tree.Finish());
  if (log) {
    const auto log_sum = LogOf(d, sum);
    Map(x, y, width, [&](auto v) HWY_ATTR { return hn::Sub(hn::Sub(v, most), log_sum); });
  } else {
    const auto inverse = hn::Div(hn::Set(d, 1.0f), sum);
    Map(y, y, width, [&](auto v) HWY_ATTR { return hn::Mul(v, inverse); });
  }
}

// A NaN counts as greatest.
inline int32_t ArgmaxOf(const float* x, int64_t width) {
  const float most = RowMax(x, width);
  int64_t i = 0;
  while (x[i] != most && x[i] == x[i]) ++i;
  return static_cast<int32_t>(i);
}

void LaunchRows(const RowState& s, const KernelArgs& args) {
  const float* const in = args.in[0].as<float>();
  const int64_t group = std::max<int64_t>(1, kTileElements / 4 / std::max<int64_t>(1, s.width));
  args.tiles->For(CeilDiv(s.rows, group), [&](int64_t tile, int) {
    const int64_t last = std::min(s.rows, (tile + 1) * group);
    for (int64_t row = tile * group; row < last; ++row) {
      const float* x = in + row * s.width;
      if (s.function == RowFunction::kArgmax) {
        args.out[0].as<int32_t>()[row] = ArgmaxOf(x, s.width);
      } else {
        const bool log = s.function == RowFunction::kLogSoftmax;
        Softmax(x, args.out[0].as<float>() + row * s.width, s.width, log);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <memory>
#include <string>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

HWY_EXPORT(LaunchReduce);
HWY_EXPORT(LaunchRows);

// Sizes of segments: enough elements for a tile.
constexpr int64_t kSequenceSegment = 65536;
constexpr int64_t kRowsSegment = 64;

// Axes that are reduced; all when none is named.
std::vector<bool> ReducedAxes(int rank, const std::vector<int64_t>& axes) {
  std::vector<bool> reduced(rank, axes.empty());
  for (int64_t axis : axes) reduced[axis < 0 ? axis + rank : axis] = true;
  return reduced;
}

template <Reduction kKind>
Bound BindReduce(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  if (x.dtype != DType::kF32 && x.dtype != DType::kF64) {
    return {.error = "computes in f32 or f64 only"};
  }
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  const int rank = x.shape.rank();
  const std::vector<bool> reduced = ReducedAxes(rank, args.attrs->GetInts("axes"));
  auto s = std::make_shared<ReduceState>();
  s->kind = kKind;
  s->dtype = x.dtype;
  s->kept.operands = s->reduced.operands = s->column.operands = 1;
  // Columns: the last kept dimensions with no reduced one of more than one element behind them.
  int first_column = rank;
  while (first_column > 0 && (!reduced[first_column - 1] || x.shape.dim(first_column - 1) == 1)) {
    --first_column;
  }
  for (int axis = 0; axis < rank; ++axis) {
    Walk* walk = reduced[axis] ? &s->reduced : axis >= first_column ? &s->column : &s->kept;
    const int64_t stride = x.strides.dim(axis);
    AppendDim(walk, x.shape.dim(axis), &stride);
  }
  s->outer = s->kept.elements;
  s->columns = s->column.elements;
  s->count = s->reduced.elements;
  s->segment = s->columns == 1 ? kSequenceSegment : kRowsSegment;
  s->segments = std::max<int64_t>(1, CeilDiv(s->count, s->segment));
  s->segment = std::min(s->segment, std::max<int64_t>(1, s->count));
  Bound bound;
  if (s->segments > 1) {
    bound.scratch_bytes =
        s->outer * s->segments * s->columns * static_cast<int64_t>(SizeOf(x.dtype));
  }
  bound.state = std::move(s);
  return bound;
}

int RunReduce(const void* state, const KernelArgs& args) {
  HWY_DYNAMIC_DISPATCH(LaunchReduce)(*static_cast<const ReduceState*>(state), args);
  return 0;
}

template <RowFunction kFunction>
Bound BindRows(const std::string&, const BindArgs& args) {
  const ArrayRef& x = args.in[0];
  if (x.dtype != DType::kF32) return {.error = "computes in f32 only"};
  if (!x.contiguous() || !args.out[0].contiguous()) return {.error = "operands are not contiguous"};
  auto state = std::make_shared<RowState>();
  state->function = kFunction;
  state->width = x.shape.dim(-1);
  state->rows = state->width == 0 ? 0 : x.elements() / state->width;
  return {.state = std::move(state)};
}

int RunRows(const void* state, const KernelArgs& args) {
  HWY_DYNAMIC_DISPATCH(LaunchRows)(*static_cast<const RowState*>(state), args);
  return 0;
}

}  // namespace

void RegisterReduceCpu(KernelTable* table) {
  const auto add = [table](const char* op, auto bind, auto launch) {
    table->Add(op, DeviceKind::kCpu, {nullptr, bind, launch});
  };
  add("sum", BindReduce<Reduction::kSum>, RunReduce);
  add("mean", BindReduce<Reduction::kMean>, RunReduce);
  add("max", BindReduce<Reduction::kMax>, RunReduce);
  add("argmax", BindRows<RowFunction::kArgmax>, RunRows);
  add("softmax", BindRows<RowFunction::kSoftmax>, RunRows);
  add("log_softmax", BindRows<RowFunction::kLogSoftmax>, RunRows);
}

}  // namespace weft
#endif  // HWY_ONCE
