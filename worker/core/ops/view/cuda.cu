// The two view ops that write, on CUDA: each operand, or run of zeros, is laid into its place of
// every row of the result by a launch of its own.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

using cuda::DeviceWalk;

constexpr int kThreads = 256;

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
__global__ void __launch_bounds__(kThreads)
    PieceKernel(const T* in, T* out, __grid_constant__ const DeviceWalk walk, int64_t row,
                int64_t begin, int64_t length, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  out[i / length * row + begin + i % length] = in == nullptr ? T{0} : in[cuda::OffsetOf(walk, i)];
}

template <typename T>
void LaunchPieces(const JoinState& s, const KernelArgs& args) {
  const int64_t rows = s.elements / s.row;
  for (const Piece& piece : s.pieces) {
    const int64_t total = rows * piece.length;
    if (total == 0) continue;
    const T* in = piece.operand < 0 ? nullptr : args.in[piece.operand].as<const T>();
    PieceKernel<T><<<static_cast<unsigned>(cuda::CeilDiv(total, kThreads)), kThreads, 0,
                     cuda::StreamOf(args)>>>(in, args.out[0].as<T>(), cuda::ToDevice(piece.walk),
                                             s.row, piece.begin, piece.length, total);
  }
}

int LaunchJoin(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const JoinState*>(raw);
  if (s.elements == 0) return 0;
  // Moves bytes, so only the width matters.
  switch (SizeOf(args.out[0].dtype)) {
    case 1:
      LaunchPieces<uint8_t>(s, args);
      break;
    case 2:
      LaunchPieces<uint16_t>(s, args);
      break;
    case 4:
      LaunchPieces<uint32_t>(s, args);
      break;
    default:
      LaunchPieces<uint64_t>(s, args);
  }
  return cuda::LaunchError();
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

void RegisterViewCuda(KernelTable* table) {
  table->Add("concat", DeviceKind::kCuda, {nullptr, BindConcat, LaunchJoin, true});
  table->Add("pad", DeviceKind::kCuda, {nullptr, BindPad, LaunchJoin, true});
}

}  // namespace weft
