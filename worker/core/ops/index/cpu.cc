// Rows by number. The gradient sorts positions by id (a counting sort, which keeps their order) and
// then adds up each table row on its own, four positions at a time: no atomics, and the order
// depends on the ids only.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/core/ops/index/cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway wants this order.
#include <algorithm>

#include "hwy/highway.h"

#include "worker/core/dispatch/kernel_args.h"
#include "worker/core/ops/index/state.h"
#include "worker/core/ops/strided.h"
#include "worker/core/ops/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

// to[i] += the sum of `kRows` rows' elements i, in pairs.
template <int kRows>
HWY_INLINE void AddRows(float* HWY_RESTRICT to, const float* const (&row)[4], size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto sum = [&](auto load, size_t i) HWY_ATTR {
    if constexpr (kRows == 4) {
      const auto first = hn::Add(load(row[0] + i), load(row[1] + i));
      return hn::Add(load(to + i), hn::Add(first, hn::Add(load(row[2] + i), load(row[3] + i))));
    } else {
      return hn::Add(load(to + i), load(row[0] + i));
    }
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(sum([&](const float* p) HWY_ATTR { return hn::LoadU(d, p); }, i), d, to + i);
  }
  if (i == count) return;
  const size_t rest = count - i;
  StoreFirst(d, sum([&](const float* p) HWY_ATTR { return LoadFirst(d, p, rest); }, i), to + i,
             rest);
}

constexpr int64_t kColumns = 256;

void SumPositions(const EmbeddingState& s, const KernelArgs& args, const int32_t* start,
                  const int32_t* position) {
  const float* const dy = args.in[0].as<float>();
  float* const out = args.out[0].as<float>();
  const int64_t strips = std::max<int64_t>(1, CeilDiv(s.width, kColumns));
  const int64_t strip_width = std::min(s.width, kColumns);
  const int64_t group = std::max<int64_t>(1, kTileElements / std::max<int64_t>(1, strip_width));
  args.tiles->For(CeilDiv(s.rows, group) * strips, [&](int64_t tile, int) {
    const int64_t column = tile % strips * kColumns;
    const int64_t width = std::min(kColumns, s.width - column);
    const int64_t last = std::min(s.rows, (tile / strips + 1) * group);
    for (int64_t v = tile / strips * group; v < last; ++v) {
      float* const to = out + v * s.width + column;
      std::fill_n(to, width, 0.0f);
      const auto row = [&](int32_t i) { return dy + position[i] * s.width + column; };
      int32_t i = start[v];
      for (; i + 4 <= start[v + 1]; i += 4) {
        AddRows<4>(to, {row(i), row(i + 1), row(i + 2), row(i + 3)}, width);
      }
      for (; i < start[v + 1]; ++i) AddRows<1>(to, {row(i), nullptr, nullptr, nullptr}, width);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>
#include <memory>
#include <string>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

HWY_EXPORT(SumPositions);

Bound BindIds(const ArrayRef& table, const ArrayRef& ids, const ArrayRef& rows,
              const BindArgs& args) {
  for (int i = 0; i < args.in_count; ++i) {
    if (!args.in[i].contiguous()) return {.error = "operands are not contiguous"};
  }
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  if (ids.dtype != DType::kI32 || table.dtype != DType::kF32 || rows.dtype != DType::kF32) {
    return {.error = "takes i32 ids and f32 rows"};
  }
  if (ids.elements() >= INT32_MAX) return {.error = "more than 2^31 - 2 ids"};
  auto state = std::make_shared<EmbeddingState>();
  *state = {table.shape.dim(0), table.shape.dim(1), ids.elements()};
  return {.state = std::move(state)};
}

Bound BindEmbedding(const std::string&, const BindArgs& args) {
  return BindIds(args.in[0], args.in[1], args.out[0], args);
}

int LaunchEmbedding(const void* raw, const KernelArgs& args) {
  const EmbeddingState& s = *static_cast<const EmbeddingState*>(raw);
  const float* const table = args.in[0].as<float>();
  const int32_t* const ids = args.in[1].as<int32_t>();
  float* const out = args.out[0].as<float>();
  const int64_t group = std::max<int64_t>(1, kTileElements / std::max<int64_t>(1, s.width));
  args.tiles->For(CeilDiv(s.ids, group), [&](int64_t tile, int) {
    const int64_t last = std::min(s.ids, (tile + 1) * group);
    for (int64_t i = tile * group; i < last; ++i) {
      if (ids[i] >= 0 && ids[i] < s.rows) {
        std::memcpy(out + i * s.width, table + ids[i] * s.width, s.width * sizeof(float));
      } else {
        std::fill_n(out + i * s.width, s.width, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
  return 0;
}

Bound BindEmbeddingGrad(const std::string&, const BindArgs& args) {
  Bound bound = BindIds(args.out[0], args.in[1], args.in[0], args);
  if (!bound.error.empty()) return bound;
  // start[rows + 1], then positions sorted by id.
  const auto& s = *static_cast<const EmbeddingState*>(bound.state.get());
  bound.scratch_bytes = (s.rows + 1 + s.ids) * static_cast<int64_t>(sizeof(int32_t));
  return bound;
}

int LaunchEmbeddingGrad(const void* raw, const KernelArgs& args) {
  const EmbeddingState& s = *static_cast<const EmbeddingState*>(raw);
  const int32_t* const ids = args.in[1].as<int32_t>();
  int32_t* const start = static_cast<int32_t*>(args.scratch);
  int32_t* const position = start + s.rows + 1;
  const auto inside = [&s](int32_t id) { return id >= 0 && id < s.rows; };
  std::fill_n(start, s.rows + 1, 0);
  for (int64_t i = 0; i < s.ids; ++i) {
    if (inside(ids[i])) ++start[ids[i]];
  }
  // Counts become ends; filling from the back turns ends into starts.
  int32_t sum = 0;
  for (int64_t v = 0; v < s.rows; ++v) start[v] = sum += start[v];
  start[s.rows] = sum;
  for (int64_t i = s.ids; i-- > 0;) {
    if (inside(ids[i])) position[--start[ids[i]]] = static_cast<int32_t>(i);
  }
  HWY_DYNAMIC_DISPATCH(SumPositions)(s, args, start, position);
  return 0;
}

}  // namespace

void RegisterIndexCpu(KernelTable* table) {
  table->Add("embedding", DeviceKind::kCpu, {nullptr, BindEmbedding, LaunchEmbedding});
  table->Add("embedding_grad", DeviceKind::kCpu, {nullptr, BindEmbeddingGrad, LaunchEmbeddingGrad});
}

}  // namespace weft
#endif  // HWY_ONCE
