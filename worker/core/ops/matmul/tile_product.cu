// A block takes a run of tiles of 128 x 128 in row-major order. The rows of `a` that its tiles
// share stay in shared memory whole (so k is at most kMostK); `b` passes through a ring. One warp
// fetches; two teams of two warp groups, each with half of a tile's rows, multiply and finish tiles
// in turn, so that one team's epilogue runs beside the other's product. Results are staged in
// shared memory and stored by the TMA, which cuts off what is beyond the matrix; what it reads
// there is zero.
//
// gelu has the tanh form as x s, s = 1 / (1 + e^-u), u = x (A + B x^2), A = 2 sqrt(2 / pi), B =
// 0.044715 A; its slope is s + x u' s (1 - s).
#include <algorithm>

#include "worker/core/ops/cuda_hopper.cuh"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/matmul/column_sums.cuh"
#include "worker/core/ops/matmul/tile_product.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WEFT_HOPPER 1
#else
#define WEFT_HOPPER 0
#endif

namespace weft::cuda {

struct TileMaps {
  CUtensorMap a, b, h, c;
};

struct TileShape {
  int tiles;   // of all
  int across;  // tiles in a row of them
  int steps;   // of 64 along k
  int ring;    // panels
  int64_t n;
  const bf16* bias;  // null: none
  float* partial;    // null, or [2 * rows of tiles, n]: sums of columns by group
};

using TileLaunch = void (*)(const TileMaps, const TileShape);

// One instance of the kernel below.
struct TileKernel {
  bool grad, transpose_b;
  TileLaunch launch;
};

namespace {

constexpr int kTile = 128;
constexpr int kStep = 64;  // of k, a swizzled row of bf16
constexpr int64_t kMostK = 384;
constexpr int kMostSteps = kMostK / kStep;
constexpr int kPanelBytes = kTile * kStep * 2;  // of a tile's 64 columns, or of a step
constexpr int kTeams = 2;
constexpr int kGroups = 2 * kTeams;  // that multiply
constexpr int kWarpRows = 16;
constexpr int kThreads = (1 + kGroups) * hopper::kWarpGroup;

// Panels: first those of `a`, then the ring of `b`.
constexpr int kPanels = 10;
constexpr int kMostRing = 8;
struct __align__(1024) TileMemory {
  char panels[kPanels][kPanelBytes];
  char stage[kTeams][2][kPanelBytes];
  float columns[kGroups][kTile];
  uint64_t a_full[kMostSteps], a_empty;
  uint64_t b_full[kMostRing], b_empty[kMostRing];
  uint64_t h_full[kTeams], h_empty[kTeams], turn[kTeams];
};
// The runtime puts dynamic shared memory on 1024 bytes where there is no other.
static_assert(sizeof(TileMemory) <= 227 * 1024);

#if WEFT_HOPPER

using namespace hopper;

constexpr int kGroupRows = 64;
constexpr float kA = 1.5957691216057308f, kB = kA * 0.044715f;
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Between -9 and 9: further out the slope is 0 or 1 anyway, and e^-u no number. A NaN stays.
__device__ __forceinline__ float Limited(float x) {
  float y;
  asm("{\n.reg .f32 t;\nmin.NaN.f32 t, %1, 0f41100000;\nmax.NaN.f32 %0, t, 0fC1100000;\n}"
      : "=f"(y)
      : "f"(x));
  return y;
}

__device__ __forceinline__ float Gelu(float x) {
  const float e = Exp2(x * (x * x * (-kB * kLog2E) - kA * kLog2E));
  return x * Inverse(1.0f + e);
}
__device__ __forceinline__ float GeluSlope(float wide) {
  const float x = Limited(wide);
  const float square = x * x;
  const float e = Exp2(x * (square * (-kB * kLog2E) - kA * kLog2E));
  const float s = Inverse(1.0f + e);
  return s + x * (3 * kB * square + kA) * (s * (e * s));
}

__device__ __forceinline__ uint32_t Pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// The run of tiles of this block: [begin, end).
__device__ __forceinline__ int RunBegin(const TileShape& s, int block) {
  return static_cast<int>(int64_t{s.tiles} * block / gridDim.x);
}

__device__ __forceinline__ int WarpOfGroup() { return threadIdx.x % kWarpGroup / kWarp; }

// This warp's rows of a panel. Warps stage and store theirs without waiting for each other.
__device__ __forceinline__ char* RowsOfWarp(char* panel, int group) {
  return panel + (group % 2 * kGroupRows + WarpOfGroup() * kWarpRows) * kSwizzle;
}

// Where this lane's part of four fragments of the warp's rows lies, columns 8 j to 8 j + 15.
__device__ __forceinline__ uint32_t FragmentAddress(const char* rows, int j) {
  const int lane = threadIdx.x % kWarp, row = lane % kWarpRows;
  const int chunk = (j + lane / 16) ^ (row % 8);  // of 16 bytes, swizzled
  return SharedAddress(rows) + static_cast<uint32_t>(row * kSwizzle + chunk * 16);
}

template <bool kGrad, bool kTransposedB>
__device__ __forceinline__ void Fetch(const TileMaps& maps, const TileShape& s, TileMemory& m) {
  const int begin = RunBegin(s, blockIdx.x), end = RunBegin(s, blockIdx.x + 1);
  int slot = 0;
  uint32_t lap = 0, turn = 0;  // of the ring, and of `a`
  for (int tile = begin; tile < end; ++tile) {
    const int row = tile / s.across * kTile, column = tile % s.across * kTile;
    const bool fetches_a = tile == begin || column == 0;
    if (fetches_a) Wait(&m.a_empty, turn ^ 1);
    for (int k = 0; k < s.steps; ++k) {
      if (fetches_a) {
        ArriveExpecting(&m.a_full[k], kPanelBytes);
        LoadTile(m.panels[k], &maps.a, &m.a_full[k], k * kStep, row);
      }
      char* const to = m.panels[s.steps + slot];
      Wait(&m.b_empty[slot], lap ^ 1);
      ArriveExpecting(&m.b_full[slot], kPanelBytes);
      if constexpr (kTransposedB) {  // rows of b are along n
        LoadTile(to, &maps.b, &m.b_full[slot], k * kStep, column);
      } else {
        LoadTile(to, &maps.b, &m.b_full[slot], column, k * kStep);
        LoadTile(to + kPanelBytes / 2, &maps.b, &m.b_full[slot], column + 64, k * kStep);
      }
      if (++slot == s.ring) {
        slot = 0;
        lap ^= 1;
      }
    }
    if (fetches_a) turn ^= 1;
    if constexpr (kGrad) {
      const int team = (tile - begin) % kTeams, round = (tile - begin) / kTeams;
      Wait(&m.h_empty[team], (round & 1) ^ 1);
      ArriveExpecting(&m.h_full[team], 2 * kPanelBytes);
      for (int half = 0; half < 2; ++half) {
        LoadTile(m.stage[team][half], &maps.h, &m.h_full[team], column + half * 64, row);
      }
    }
  }
}

// The product of this group's rows of the block's i-th tile. Teams take turns: phases of the ring's
// barriers tell only neighbors apart, so none may pass that the other team has not seen.
template <bool kTransposedB>
__device__ __forceinline__ void Multiply(const TileShape& s, TileMemory& m, int group, int i,
                                         uint32_t a_turn, float (&sums)[64]) {
  const bool elected = threadIdx.x % kWarpGroup == 0;
  int slot = i * s.steps % s.ring, before = 0;
  uint32_t lap = i * s.steps / s.ring & 1;
  // Descriptors count in 16 bytes.
  const uint64_t panels = TileDescriptor(SharedAddress(m.panels), 0, 8 * kSwizzle);
  const uint64_t left = panels + group % 2 * (kGroupRows * kSwizzle / 16);
  const uint64_t right =
      kTransposedB ? panels
                   : TileDescriptor(SharedAddress(m.panels), kPanelBytes / 2, 8 * kSwizzle);
  constexpr int kPanel = kPanelBytes / 16, kLeft = 2, kRight = kTransposedB ? 2 : kSwizzle;
  if (i > 0) Wait(&m.turn[i % kTeams], (i - 1) / kTeams & 1);
  for (int k = 0; k < s.steps; ++k) {
    Wait(&m.a_full[k], a_turn);
    Wait(&m.b_full[slot], lap);
    const uint64_t a = left + static_cast<uint32_t>(k * kPanel);
    const uint64_t b = right + static_cast<uint32_t>((s.steps + slot) * kPanel);
    FenceProducts();
#pragma unroll
    for (int part = 0; part < kStep / 16; ++part) {
      Multiply64x128x16<!kTransposedB>(sums, a + part * kLeft, b + part * kRight, k + part > 0);
    }
    CommitProducts();
    if (k == s.steps - 1 && elected) Arrive(&m.turn[(i + 1) % kTeams]);
    WaitProducts<1>();
    if (k > 0 && elected) Arrive(&m.b_empty[before]);
    before = slot;
    if (++slot == s.ring) {
      slot = 0;
      lap ^= 1;
    }
  }
  WaitProducts<0>();
  if (elected) Arrive(&m.b_empty[before]);
  Pin(sums);
}

// h = product + bias and gelu(h), in halves of 64 columns through two panels. `bias`: of the
// thread's columns, in pairs.
__device__ __forceinline__ void FinishGelu(const TileMaps& maps, TileMemory& m, int group, int row,
                                           int column, const uint32_t (&bias)[16],
                                           float (&sums)[64]) {
  const bool elected = threadIdx.x % kWarp == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {  // h, gelu(h)
      char* const panel = RowsOfWarp(m.stage[group / 2][which], group);
      if (elected) WaitStoresRead<1>();  // the one before the last was from this panel
      __syncwarp();
#pragma unroll
      for (int j = half * 8; j < half * 8 + 8; j += 2) {
        uint32_t fragment[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* const x = &sums[4 * (j + i)];
          const float low = Low(bias[j + i]), high = High(bias[j + i]);
#pragma unroll
          for (int e = 0; e < 4; ++e) x[e] = which == 0 ? x[e] + (e % 2 ? high : low) : Gelu(x[e]);
          fragment[2 * i] = Pair(x[0], x[1]);
          fragment[2 * i + 1] = Pair(x[2], x[3]);
        }
        StoreMatrices(FragmentAddress(panel, j - half * 8), fragment);
      }
      FenceStores();
      __syncwarp();
      if (elected)
        StoreTile(which == 0 ? &maps.h : &maps.c, panel, column + half * 64,
                  row + WarpOfGroup() * kWarpRows);
    }
  }
}

// Halves what each lane holds: the lower half of the sums stays where lane bit kCount is 0.
template <int kCount>
__device__ __forceinline__ int JoinLanes(float (&sums)[32]) {
  const bool upper = (threadIdx.x & kCount) != 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float gives = upper ? sums[i] : sums[i + kCount];
    const float keeps = upper ? sums[i + kCount] : sums[i];
    sums[i] = keeps + __shfl_xor_sync(~0u, gives, kCount);
  }
  return upper ? kCount : 0;
}

// Adds the warps' sums of columns in order and writes them to `to`.
__device__ __forceinline__ void DeliverColumns(const TileShape& s, float* shared, int group,
                                               int column, float (&columns)[32], float* to) {
  const int lane = threadIdx.x % kWarp, warp = WarpOfGroup();
  // Over the eight lanes that share columns; each is left with four sums, from the first-th on.
  int first = JoinLanes<16>(columns);
  first += JoinLanes<8>(columns);
  first += JoinLanes<4>(columns);
#pragma unroll
  for (int w = 0; w < kWarpGroup / kWarp; ++w) {
    if (w == warp) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        auto* const at = reinterpret_cast<float2*>(shared + (first + i) / 2 * 8 + 2 * (lane % 4));
        const float2 old = w == 0 ? make_float2(0, 0) : *at;
        *at = make_float2(old.x + columns[i], old.y + columns[i + 1]);
      }
    }
    SyncWarpGroup(1 + group);
  }
  const int own = threadIdx.x % kWarpGroup;
  if (column + own < s.n) to[column + own] = shared[own];
  SyncWarpGroup(1 + group);
}

// c = product times the slope at h, in the place of h, and the sums of its columns.
__device__ __forceinline__ void FinishGrad(const TileMaps& maps, const TileShape& s, TileMemory& m,
                                           int group, int row, int column, float (&sums)[64]) {
  const bool elected = threadIdx.x % kWarp == 0;
  float columns[32];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    char* const panel = RowsOfWarp(m.stage[group / 2][half], group);
#pragma unroll
    for (int j = half * 8; j < half * 8 + 8; j += 2) {
      const uint32_t address = FragmentAddress(panel, j - half * 8);
      uint32_t fragment[4];
      LoadMatrices(address, fragment);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* const x = &sums[4 * (j + i)];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t h = fragment[2 * i + e];
          x[2 * e] *= GeluSlope(Low(h));
          x[2 * e + 1] *= GeluSlope(High(h));
          fragment[2 * i + e] = Pair(x[2 * e], x[2 * e + 1]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) columns[2 * (j + i) + e] = x[e] + x[2 + e];
      }
      StoreMatrices(address, fragment);
    }
    FenceStores();
    __syncwarp();
    if (elected) StoreTile(&maps.c, panel, column + half * 64, row + WarpOfGroup() * kWarpRows);
  }
  if (s.partial != nullptr) {
    DeliverColumns(s, m.columns[group], group, column, columns,
                   s.partial + int64_t{row} / kGroupRows * s.n);
  }
}

template <bool kGrad, bool kTransposedB>
__device__ __forceinline__ void MultiplyAndFinish(const TileMaps& maps, const TileShape& s,
                                                  TileMemory& m, int group) {
  const bool elected = threadIdx.x % kWarpGroup == 0, stores = threadIdx.x % kWarp == 0;
  const int team = group / 2;
  const int begin = RunBegin(s, blockIdx.x), end = RunBegin(s, blockIdx.x + 1);
  uint32_t turn = 0;
  for (int first = begin; first < end; turn ^= 1) {
    const int start = first / s.across * s.across, last = min(end, start + s.across);
    const int row = first / s.across * kTile + group % 2 * kGroupRows;
    int tile = first + ((first - begin) % kTeams != team ? 1 : 0);
    if (tile >= last) {  // none here, but no phase may be missed
      for (int k = 0; k < s.steps; ++k) Wait(&m.a_full[k], turn);
      if (elected) Arrive(&m.a_empty);
    }
    for (; tile < last; tile += kTeams) {
      const int column = (tile - start) * kTile;
      uint32_t bias[16];
      if constexpr (kGrad) {
        if (tile >= begin + kTeams && stores) {
          WaitStoresRead<0>();
          Arrive(&m.h_empty[team]);
        }
      } else {
        // Before the product, which hides the wait for them.
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int64_t at = column + j * 8 + 2 * (threadIdx.x % 4);
          bias[j] = s.bias != nullptr && at < s.n
                        ? __ldg(reinterpret_cast<const unsigned int*>(s.bias + at))
                        : 0;
        }
      }
      float sums[64];
      Multiply<kTransposedB>(s, m, group, tile - begin, turn, sums);
      if (tile + kTeams >= last && elected) Arrive(&m.a_empty);
      if constexpr (kGrad) {
        Wait(&m.h_full[team], (tile - begin) / kTeams & 1);
        FinishGrad(maps, s, m, group, row, column, sums);
      } else {
        FinishGelu(maps, m, group, row, column, bias, sums);
      }
    }
    first = last;
  }
  if (stores) WaitStoresRead<0>();
}

#endif  // WEFT_HOPPER

template <bool kGrad, bool kTransposedB>
__global__ void __launch_bounds__(kThreads, 1)
    TilesKernel(const __grid_constant__ TileMaps maps, const __grid_constant__ TileShape s) {
#if WEFT_HOPPER
  extern __shared__ __align__(1024) char shared[];
  TileMemory& m = *reinterpret_cast<TileMemory*>(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostSteps; ++i) InitBarrier(&m.a_full[i], 1);
    InitBarrier(&m.a_empty, kGroups);
    for (int i = 0; i < kMostRing; ++i) {
      InitBarrier(&m.b_full[i], 1);
      InitBarrier(&m.b_empty[i], 2);
    }
    for (int i = 0; i < kTeams; ++i) {
      InitBarrier(&m.h_full[i], 1);
      InitBarrier(&m.h_empty[i], 2 * kWarpGroup / kWarp);
      InitBarrier(&m.turn[i], 2);
    }
    FenceBarriers();
  }
  __syncthreads();
  const int group = threadIdx.x / kWarpGroup;
  if (group == 0) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) Fetch<kGrad, kTransposedB>(maps, s, m);
  } else {
    TakeRegisters<112>();
    MultiplyAndFinish<kGrad, kTransposedB>(maps, s, m, group - 1);
  }
#endif
}

constexpr TileKernel kKernels[] = {
    {false, false, TilesKernel<false, false>},
    {false, true, TilesKernel<false, true>},
    {true, false, TilesKernel<true, false>},
    {true, true, TilesKernel<true, true>},
};
constexpr char kId[] = "tile128";

bool IsGrad(const ProductSpec& s) { return s.epilogue == ProductSpec::Epilogue::kGeluGrad; }

bool IsHopper() {
  static const bool is = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
  }();
  return is;
}

const TileKernel* KernelFor(const ProductSpec& s) {
  using Epilogue = ProductSpec::Epilogue;
  const bool gelu = s.epilogue == Epilogue::kGelu || s.epilogue == Epilogue::kBiasGelu;
  const int64_t tiles = CeilDiv(s.m, kTile) * CeilDiv(s.n, kTile);
  if (!(gelu || IsGrad(s)) || s.in != DType::kBF16 || s.out != DType::kBF16 || s.batch != 1 ||
      s.transpose_a || s.accumulates || s.k > kMostK || s.k % 8 != 0 || s.n % 8 != 0 ||
      s.m * s.n * s.k == 0 || tiles > INT32_MAX || s.m > INT32_MAX / 2 || !IsHopper()) {
    return nullptr;
  }
  for (const TileKernel& kernel : kKernels) {
    if (kernel.grad == IsGrad(s) && kernel.transpose_b == s.transpose_b) return &kernel;
  }
  return nullptr;
}

using EncodeMap = decltype(&cuTensorMapEncodeTiled);
EncodeMap Encoder() {
  static const EncodeMap encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess ? reinterpret_cast<EncodeMap>(function) : nullptr;
  }();
  return encode;
}

// Tiles of box_rows x 64 of a row-major matrix.
bool Describe(const void* data, int64_t rows, int64_t columns, uint32_t box_rows,
              CUtensorMap* map) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {kStep, box_rows}, steps[] = {1, 1};
  return Encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes,
                   strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int Processors() {
  static const int count = [] {
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return std::max(1, processors);
  }();
  return count;
}

}  // namespace

std::vector<std::string> TileProduct::Candidates(const ProductSpec& spec) {
  if (KernelFor(spec) == nullptr || Encoder() == nullptr) return {};
  return {kId};
}

std::shared_ptr<const TileProduct> TileProduct::Make(const ProductSpec& spec, const std::string& id,
                                                     std::string* error) {
  const TileKernel* const kernel = id == kId ? KernelFor(spec) : nullptr;
  if (kernel == nullptr || Encoder() == nullptr) {
    *error = "no kernel '" + id + "' for this product";
    return nullptr;
  }
  if (const cudaError_t failed =
          cudaFuncSetAttribute(kernel->launch, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(sizeof(TileMemory)));
      failed != cudaSuccess) {
    *error = cudaGetErrorString(failed);
    return nullptr;
  }
  std::shared_ptr<TileProduct> product(new TileProduct);
  product->spec_ = spec;
  product->kernel_ = kernel;
  if (spec.sums_columns) {
    product->workspace_bytes_ =
        CeilDiv(spec.m, kTile) * 2 * spec.n * static_cast<int64_t>(sizeof(float));
  }
  return product;
}

bool TileProduct::Takes(const ProductOperands& o) const {
  for (const void* p : {o.a, o.b, static_cast<const void*>(o.c), static_cast<const void*>(o.aux)}) {
    if (!IsAligned(p)) return false;
  }
  return (reinterpret_cast<uintptr_t>(o.bias) & 3) == 0;
}

int TileProduct::Launch(const ProductOperands& o, cudaStream_t stream) const {
  TileMaps maps;
  const bool nk = spec_.transpose_b;
  if (!Describe(o.a, spec_.m, spec_.k, kTile, &maps.a) ||
      !Describe(o.b, nk ? spec_.n : spec_.k, nk ? spec_.k : spec_.n, nk ? kTile : kStep, &maps.b) ||
      !Describe(o.aux, spec_.m, spec_.n, kernel_->grad ? kTile : kWarpRows, &maps.h) ||
      !Describe(o.c, spec_.m, spec_.n, kWarpRows, &maps.c)) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  TileShape shape = {};
  shape.across = static_cast<int>(CeilDiv(spec_.n, kTile));
  const int64_t down = CeilDiv(spec_.m, kTile);
  shape.tiles = static_cast<int>(down * shape.across);
  shape.steps = static_cast<int>(CeilDiv(spec_.k, kStep));
  shape.ring = std::min(kMostRing, kPanels - shape.steps);
  shape.n = spec_.n;
  shape.bias = static_cast<const bf16*>(o.bias);
  shape.partial = spec_.sums_columns ? static_cast<float*>(o.workspace) : nullptr;
  const int blocks = std::min(shape.tiles, Processors());
  kernel_->launch<<<static_cast<unsigned>(blocks), kThreads, sizeof(TileMemory), stream>>>(maps,
                                                                                           shape);
  if (spec_.sums_columns) {
    LaunchJoinStripes(shape.partial, down * 2, spec_.n, spec_.n, o.sums, stream);
  }
  return LaunchError();
}

}  // namespace weft::cuda
