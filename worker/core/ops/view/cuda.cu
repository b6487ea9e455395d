// The two view ops that write, on CUDA. The result is rows of pieces: parts of operands, or zeros.
// Where every operand has its part of a row in a run, one launch lays all of them, each thread the
// widest words that all sides allow; else each operand is copied into its place by its strides.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_copy.cuh"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/cuda_walk.cuh"
#include "worker/core/ops/families.h"

namespace weft {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;      // words a thread
constexpr int kMostLaid = 8;  // pieces of one launch

// Within each row of the result: `length` elements of an operand, or zeros where `operand` < 0.
struct Piece {
  int operand = -1;
  int64_t begin = 0;
  int64_t length = 0;
  Walk walk;         // of the operand, and of its place in the result
  bool runs = true;  // whether the part of row r is a run, at r * row_step
  int64_t row_step = 0;
};

struct JoinState {
  int64_t row = 0;
  int64_t elements = 0;
  std::vector<Piece> pieces;
};

// In words.
struct Laid {
  struct Part {
    const void* from;  // null: zeros
    int64_t row_step;
    uint32_t begin;
  };
  Part part[kMostLaid];  // in the order of their places
  int parts;
  uint32_t words;
  cuda::Divisor row;
};

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    LayKernel(__grid_constant__ const Laid laid, Word* out) {
  const uint32_t first = blockIdx.x * (kThreads * kEach) + threadIdx.x;
  Word word[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const uint32_t i = first + u * kThreads;
    word[u] = {};
    if (i >= laid.words) continue;
    const uint32_t row = laid.row.Quotient(i), at = i - row * laid.row.value;
    int p = 0;
    while (p + 1 < laid.parts && laid.part[p + 1].begin <= at) ++p;
    const Laid::Part& part = laid.part[p];
    if (part.from == nullptr) continue;
    word[u] = static_cast<const Word*>(part.from)[row * part.row_step + (at - part.begin)];
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const uint32_t i = first + u * kThreads;
    if (i < laid.words) out[i] = word[u];
  }
}

template <typename Word>
void Lay(const JoinState& s, int64_t size, const KernelArgs& args) {
  const int64_t each = static_cast<int64_t>(sizeof(Word)) / size;
  Laid laid = {};
  for (const Piece& piece : s.pieces) {
    Laid::Part& part = laid.part[laid.parts++];
    if (piece.operand >= 0) part.from = args.in[piece.operand].data;
    part.row_step = piece.row_step / each;
    part.begin = static_cast<uint32_t>(piece.begin / each);
  }
  laid.words = static_cast<uint32_t>(s.elements / each);
  laid.row = cuda::Divisor(s.row / each);
  const auto blocks = static_cast<unsigned>(cuda::CeilDiv(laid.words, kThreads * kEach));
  LayKernel<Word><<<blocks, kThreads, 0, cuda::StreamOf(args)>>>(laid, args.out[0].as<Word>());
}

// Bytes of the widest words that every side is whole in; 0: there are too many for one launch.
int64_t WordBytes(const JoinState& s, int64_t size, const KernelArgs& args) {
  if (s.pieces.size() > kMostLaid || s.elements >= cuda::kMost32) return 0;
  auto places = reinterpret_cast<uintptr_t>(args.out[0].data);
  int64_t elements = s.row;
  for (const Piece& piece : s.pieces) {
    if (!piece.runs) return 0;
    if (piece.operand >= 0) places |= reinterpret_cast<uintptr_t>(args.in[piece.operand].data);
    elements |= piece.begin | piece.row_step;  // their common power of two is that of the least
  }
  int64_t bytes = 16;
  while (bytes > size && ((places & (bytes - 1)) != 0 || elements % (bytes / size) != 0)) {
    bytes /= 2;
  }
  return bytes;
}

int LaunchJoin(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const JoinState*>(raw);
  if (s.elements == 0) return 0;
  const auto size = static_cast<int64_t>(SizeOf(args.out[0].dtype));
  switch (WordBytes(s, size, args)) {
    case 1:
      Lay<uint8_t>(s, size, args);
      return cuda::LaunchError();
    case 2:
      Lay<uint16_t>(s, size, args);
      return cuda::LaunchError();
    case 4:
      Lay<uint32_t>(s, size, args);
      return cuda::LaunchError();
    case 8:
      Lay<uint64_t>(s, size, args);
      return cuda::LaunchError();
    case 16:
      Lay<uint4>(s, size, args);
      return cuda::LaunchError();
    default:
      break;
  }
  char* const out = args.out[0].as<char>();
  bool zeros = false;
  for (const Piece& piece : s.pieces) zeros = zeros || piece.operand < 0;
  if (zeros) {
    cudaMemsetAsync(out, 0, static_cast<size_t>(s.elements * size), cuda::StreamOf(args));
  }
  for (const Piece& piece : s.pieces) {
    if (piece.operand < 0) continue;
    cuda::LaunchCopy(piece.walk, size, args.in[piece.operand].data, out + piece.begin * size,
                     cuda::StreamOf(args));
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

// Ends the row with a piece, if there is anything in it.
void Append(JoinState* state, const BindArgs& args, int operand, int64_t length) {
  Piece piece;
  piece.operand = operand;
  piece.begin = state->row;
  piece.length = length;
  state->row += length;
  if (length == 0) return;
  if (operand >= 0) {
    const ArrayRef& in = args.in[operand];
    piece.walk.operands = 2;
    for (int axis = 0; axis < in.shape.rank(); ++axis) {
      const int64_t strides[kMaxWalked] = {in.strides.dim(axis), args.out[0].strides.dim(axis)};
      AppendDim(&piece.walk, in.shape.dim(axis), strides);
    }
    // One operand alone merges what the rows of the result keep apart.
    const Walk own = MakeWalk(in.shape, &in, 1);
    piece.runs =
        own.linear() || (own.rank == 2 && own.inner() == length && own.inner_stride(0) == 1);
    piece.row_step = own.rank == 2 ? own.strides[0][0] : length;
  }
  state->pieces.push_back(std::move(piece));
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
