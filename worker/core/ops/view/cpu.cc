// The two view ops that write: both lay runs of operands, or zeros, one after the other in each row
// of the result. The others are windows into their input and have no kernel.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/strided.h"

namespace weft {
namespace {

// Within each row of the result: `length` elements of an operand, or zeros where `operand` < 0.
struct Piece {
  int operand = -1;
  int64_t begin = 0;
  int64_t length = 0;
  Walk walk;  // of the operand, if any
};

struct JoinState {
  int64_t row = 0;
  int64_t elements = 0;
  std::vector<Piece> pieces;
};

template <typename T>
void FillRange(const JoinState& state, const KernelArgs& args, int64_t begin, int64_t end) {
  T* const out = args.out[0].as<T>();
  while (begin < end) {
    const int64_t row = begin / state.row, at = begin % state.row;
    for (const Piece& piece : state.pieces) {
      const int64_t from = std::max(at, piece.begin);
      const int64_t to = std::min(at + (end - begin), piece.begin + piece.length);
      if (from >= to) continue;
      T* const target = out + row * state.row + from;
      if (piece.operand < 0) {
        std::memset(target, 0, (to - from) * sizeof(T));
        continue;
      }
      const int64_t first = row * piece.length + (from - piece.begin);
      const T* source =
          WalkRun(piece.walk, 0, args.in[piece.operand].as<T>(), first, to - from, target);
      if (source != target) std::memcpy(target, source, (to - from) * sizeof(T));
    }
    begin += std::min(end - begin, state.row - at);
  }
}

int LaunchJoin(const void* raw, const KernelArgs& args) {
  const JoinState& state = *static_cast<const JoinState*>(raw);
  args.tiles->For(CeilDiv(state.elements, kTileElements), [&](int64_t tile, int) {
    const int64_t begin = tile * kTileElements;
    const int64_t end = std::min(begin + kTileElements, state.elements);
    switch (SizeOf(args.out[0].dtype)) {
      case 1:
        return FillRange<uint8_t>(state, args, begin, end);
      case 2:
        return FillRange<uint16_t>(state, args, begin, end);
      case 4:
        return FillRange<uint32_t>(state, args, begin, end);
      default:
        return FillRange<uint64_t>(state, args, begin, end);
    }
  });
  return 0;
}

int64_t ElementsFrom(const Shape& shape, int axis) {
  return Shape(shape.begin() + axis, shape.end()).elements();
}

int AxisOf(const BindArgs& args) {
  const int64_t axis = args.attrs->GetInt("axis");
  return static_cast<int>(axis < 0 ? axis + args.out[0].shape.rank() : axis);
}

// Ends the row with a piece.
void Append(JoinState* state, const BindArgs& args, int operand, int64_t length) {
  Piece piece;
  piece.operand = operand;
  piece.begin = state->row;
  piece.length = length;
  if (operand >= 0) piece.walk = MakeWalk(args.in[operand].shape, args.in + operand, 1);
  state->pieces.push_back(std::move(piece));
  state->row += length;
}

Bound BindConcat(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  const int axis = AxisOf(args);
  auto state = std::make_shared<JoinState>();
  state->elements = args.out[0].elements();
  for (int i = 0; i < args.in_count; ++i) {
    Append(state.get(), args, i, ElementsFrom(args.in[i].shape, axis));
  }
  return {.state = std::move(state)};
}

Bound BindPad(const std::string&, const BindArgs& args) {
  if (!args.out[0].contiguous()) return {.error = "the result is not contiguous"};
  const int axis = AxisOf(args);
  const int64_t inner = ElementsFrom(args.out[0].shape, axis + 1);
  const int64_t begin = args.attrs->GetInt("begin"), size = args.in[0].shape.dim(axis);
  auto state = std::make_shared<JoinState>();
  state->elements = args.out[0].elements();
  Append(state.get(), args, -1, begin * inner);
  Append(state.get(), args, 0, size * inner);
  Append(state.get(), args, -1, (args.out[0].shape.dim(axis) - begin - size) * inner);
  return {.state = std::move(state)};
}

}  // namespace

void RegisterViewCpu(KernelTable* table) {
  table->Add("concat", DeviceKind::kCpu, {nullptr, BindConcat, LaunchJoin, true});
  table->Add("pad", DeviceKind::kCpu, {nullptr, BindPad, LaunchJoin, true});
}

}  // namespace weft
