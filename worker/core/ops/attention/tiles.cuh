// Tiles in shared memory for products of one warp on tensor cores, in three arithmetics:
//   Narrow: bf16, products of 16 by 16 by 8;
//   Tf32:   f32 rounded to TF32, products of 16 by 8 by 8;
//   Full:   the same of each number's two leading TF32 parts: three products for one, f32 but for
//           the last two bits.
// Sums are f32. With g = lane / 4 and c = 2 * (lane % 4), a lane holds of a product's sums (g, c),
// (g, c + 1), (g + 8, c), (g + 8, c + 1), so that sums turn into the left operand of a next product
// in place: of TF32, after renaming columns c and c + 1 of eight to c / 2 and c / 2 + 4.
//
// A tile lies in rows of kColumns. The order of a bf16 row's 16-byte chunks is stirred by the row,
// an f32 row is four longer, so that eight rows' equal chunks are in different banks.
#pragma once

#include <cstdint>

#include "worker/core/ops/attention/tensor_core.cuh"
#include "worker/core/ops/cuda_kernel.cuh"

namespace weft::attention {

inline constexpr int kStrip = 16;  // rows of a product

__device__ __forceinline__ int LaneId() { return static_cast<int>(threadIdx.x) % cuda::kWarp; }
__device__ __forceinline__ int WarpId() { return static_cast<int>(threadIdx.x) / cuda::kWarp; }

// Elements of 16 bytes.
template <typename T>
constexpr int kChunk = 16 / sizeof(T);

// Elements from row to row.
template <typename T, int kColumns>
constexpr int kRow = sizeof(T) == 2 ? kColumns : kColumns + 4;

// Where a row's chunk is, in elements.
template <typename T, int kColumns>
__device__ __forceinline__ int ChunkAt(int row, int chunk) {
  static_assert(kColumns == 32 || kColumns == 64 || kColumns == 128);
  if constexpr (sizeof(T) == 2) {
    chunk = kColumns == 32 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
  }
  return row * kRow<T, kColumns> + chunk * kChunk<T>;
}

// ---- Arithmetics. Left is 16 rows by kStep columns, Right kStep by 8.

struct Narrow {
  using Element = bf16;
  static constexpr int kStep = 16;
  struct Left {
    uint32_t word[4];
  };
  struct Right {
    uint32_t word[2];
  };
  // As they come out of memory.
  __device__ static Left MakeLeft(const uint32_t (&words)[4]) {
    return {{words[0], words[1], words[2], words[3]}};
  }
  __device__ static Right MakeRight(uint32_t word0, uint32_t word1) { return {{word0, word1}}; }
  // Out of kStep / 8 neighboring tiles of sums.
  __device__ static Left FromSums(const float (*sums)[4]) {
    return {{PackPair(sums[0][0], sums[0][1]), PackPair(sums[0][2], sums[0][3]),
             PackPair(sums[1][0], sums[1][1]), PackPair(sums[1][2], sums[1][3])}};
  }
  __device__ static void Multiply(float (&sums)[4], const Left& left, const Right& right) {
    MultiplyBf16(sums, left.word, right.word);
  }
};

struct Tf32 {
  using Element = float;
  static constexpr int kStep = 8;
  struct Left {
    uint32_t word[4];
  };
  struct Right {
    uint32_t word[2];
  };
  __device__ static Left MakeLeft(const uint32_t (&words)[4]) {
    return {{RoundToTf32(__uint_as_float(words[0])), RoundToTf32(__uint_as_float(words[1])),
             RoundToTf32(__uint_as_float(words[2])), RoundToTf32(__uint_as_float(words[3]))}};
  }
  __device__ static Right MakeRight(uint32_t word0, uint32_t word1) {
    return {{RoundToTf32(__uint_as_float(word0)), RoundToTf32(__uint_as_float(word1))}};
  }
  __device__ static Left FromSums(const float (*sums)[4]) {
    return {{RoundToTf32(sums[0][0]), RoundToTf32(sums[0][2]), RoundToTf32(sums[0][1]),
             RoundToTf32(sums[0][3])}};
  }
  __device__ static void Multiply(float (&sums)[4], const Left& left, const Right& right) {
    MultiplyTf32(sums, left.word, right.word);
  }
};

struct Full {
  using Element = float;
  static constexpr int kStep = 8;
  struct Left {
    uint32_t word[4], rest[4];
  };
  struct Right {
    uint32_t word[2], rest[2];
  };
  __device__ static void Split(float x, uint32_t* word, uint32_t* rest) {
    *word = RoundToTf32(x);
    *rest = RoundToTf32(x - __uint_as_float(*word));
  }
  __device__ static Left MakeLeft(const uint32_t (&words)[4]) {
    Left left;
#pragma unroll
    for (int i = 0; i < 4; ++i) Split(__uint_as_float(words[i]), &left.word[i], &left.rest[i]);
    return left;
  }
  __device__ static Right MakeRight(uint32_t word0, uint32_t word1) {
    Right right;
    Split(__uint_as_float(word0), &right.word[0], &right.rest[0]);
    Split(__uint_as_float(word1), &right.word[1], &right.rest[1]);
    return right;
  }
  __device__ static Left FromSums(const float (*sums)[4]) {
    Left left;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Split(sums[0][i % 2 * 2 + i / 2], &left.word[i], &left.rest[i]);
    }
    return left;
  }
  // The smallest products first.
  __device__ static void Multiply(float (&sums)[4], const Left& left, const Right& right) {
    MultiplyTf32(sums, left.rest, right.word);
    MultiplyTf32(sums, left.word, right.rest);
    MultiplyTf32(sums, left.word, right.word);
  }
};

// ---- Operands out of tiles; `row` is a multiple of 8, `column` of kStep.

// 16 rows by kStep columns.
template <typename Kind, int kColumns>
__device__ __forceinline__ typename Kind::Left LoadLeft(const typename Kind::Element* tile, int row,
                                                        int column) {
  using T = typename Kind::Element;
  const int lane = LaneId();
  uint32_t words[4];
  LoadMatrices(words, tile + ChunkAt<T, kColumns>(row + lane % 16, column / kChunk<T> + lane / 16));
  return Kind::MakeLeft(words);
}

// The transpose of 16 rows by 16 columns of bf16.
template <int kColumns>
__device__ __forceinline__ Narrow::Left LoadLeftTransposed(const bf16* tile, int row, int column) {
  const int lane = LaneId();
  uint32_t words[4];
  LoadTransposed(words, tile + ChunkAt<bf16, kColumns>(row + lane % 8 + lane / 16 * 8,
                                                       column / kChunk<bf16> + lane / 8 % 2));
  return Narrow::MakeLeft(words);
}

// Two operands: the transposes of 8 rows by kStep columns, and of the next 8 rows.
template <typename Kind, int kColumns>
__device__ __forceinline__ void LoadRightTransposed(typename Kind::Right (&to)[2],
                                                    const typename Kind::Element* tile, int row,
                                                    int column) {
  using T = typename Kind::Element;
  const int lane = LaneId();
  uint32_t words[4];
  LoadMatrices(words, tile + ChunkAt<T, kColumns>(row + lane % 8 + lane / 16 * 8,
                                                  column / kChunk<T> + lane / 8 % 2));
  to[0] = Kind::MakeRight(words[0], words[1]);
  to[1] = Kind::MakeRight(words[2], words[3]);
}

// Two operands: kStep rows by 8 columns, and by the next 8, for a left operand out of sums.
template <typename Kind, int kColumns>
__device__ __forceinline__ void LoadRight(typename Kind::Right (&to)[2],
                                          const typename Kind::Element* tile, int row, int column) {
  using T = typename Kind::Element;
  const int lane = LaneId();
  if constexpr (sizeof(T) == 2) {
    uint32_t words[4];
    LoadTransposed(words,
                   tile + ChunkAt<T, kColumns>(row + lane % 16, column / kChunk<T> + lane / 16));
    to[0] = Kind::MakeRight(words[0], words[1]);
    to[1] = Kind::MakeRight(words[2], words[3]);
  } else {
    // Rows 2 i and 2 i + 1 stand where i and i + 4 are read.
    const float* const at = tile + (row + lane % 4 * 2) * kRow<T, kColumns> + column + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[i] = Kind::MakeRight(__float_as_uint(at[8 * i]),
                              __float_as_uint(at[8 * i + kRow<T, kColumns>]));
    }
  }
}

// ---- Between global memory and tiles.

// Starts copies of rows [row, row + rows) of a matrix into rows of a tile from `to` on; zeros from
// row `end` on.
template <int kColumns, typename T>
__device__ __forceinline__ void CopyRows(T* tile, int to, const T* from, int64_t stride, int row,
                                         int rows, int end) {
  constexpr int kChunks = kColumns / kChunk<T>;
  for (int i = threadIdx.x; i < rows * kChunks; i += blockDim.x) {
    const int r = i / kChunks, c = i % kChunks;
    const bool valid = row + r < end;
    CopyChunk(tile + ChunkAt<T, kColumns>(to + r, c),
              from + (valid ? row + r : 0) * stride + c * kChunk<T>, valid);
  }
}

// Among four lanes that hold pairs of columns of a row in four tiles: lane i gets the eight columns
// of tile i.
__device__ __forceinline__ void GatherTiles(uint32_t (&pairs)[4]) {
  const int lane = LaneId();
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? pairs[i] : pairs[i + 1], 1);
    if (odd) {
      pairs[i] = got;
    } else {
      pairs[i + 1] = got;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? pairs[i] : pairs[i + 2], 2);
    if (high) {
      pairs[i] = got;
    } else {
      pairs[i + 2] = got;
    }
  }
}

// Stores a strip's sums, times a factor for each half, from row `first` of a matrix on, but for
// rows from `end` on. Tile i of sums holds columns from column_of(i) on.
template <int kTiles, typename T, typename ColumnOf>
__device__ __forceinline__ void StoreStrip(const float (&sums)[kTiles][4], float factor0,
                                           float factor1, T* to, int64_t stride, int first, int end,
                                           ColumnOf column_of) {
  static_assert(kTiles % 4 == 0);
  const int lane = LaneId();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = half == 0 ? factor0 : factor1;
    const int row = first + lane / 4 + 8 * half;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int t = 0; t < kTiles; t += 4) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pairs[i] = PackPair(sums[t + i][2 * half] * factor, sums[t + i][2 * half + 1] * factor);
        }
        GatherTiles(pairs);
        if (row < end) {
          *reinterpret_cast<uint4*>(to + row * stride + column_of(t + lane % 4)) =
              make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
      }
    } else if (row < end) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        *reinterpret_cast<float2*>(to + row * stride + column_of(t) + lane % 4 * 2) =
            make_float2(sums[t][2 * half] * factor, sums[t][2 * half + 1] * factor);
      }
    }
  }
}

// The part of sum over columns of a b that one chunk of a row gives, added up over the row's lanes.
template <int kColumns, typename T>
__device__ __forceinline__ float RowDot(const cuda::Pack<T>& a, const cuda::Pack<T>& b) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kChunk<T>; ++e) sum += cuda::Load(a.value[e]) * cuda::Load(b.value[e]);
#pragma unroll
  for (int step = kColumns / kChunk<T> / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  return sum;
}

}  // namespace weft::attention
