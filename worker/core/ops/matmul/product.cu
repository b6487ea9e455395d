// Sums of slices are in slice order, so that a product in slices gives the same bits every time;
// the plain kernel adds in rising order of k. gelu has the tanh form: x / (1 + e^-u) with u = x (a
// + b x^2), a = 2 sqrt(2 / pi), b = 0.044715 a.
#include <algorithm>
#include <cstdlib>

#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/matmul/column_sums.cuh"
#include "worker/core/ops/matmul/product.h"
#include "worker/core/ops/matmul/product_table.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kGeluA = 1.5957691216057308f;
constexpr float kGeluB = kGeluA * 0.044715f;

__device__ __forceinline__ float Gelu(float x) {
  return x / (1.0f + expf(-x * (x * x * kGeluB + kGeluA)));
}

// s + x u' s (1 - s) with s = 1 / (1 + e^-u).
__device__ __forceinline__ float GeluSlope(float x) {
  // The slope is 0 or 1 further out; the limit keeps 0 * infinity away.
  x = x > 12.0f ? 12.0f : x < -12.0f ? -12.0f : x;
  const float square = x * x;
  const float u = x * (square * kGeluB + kGeluA), du = 3 * kGeluB * square + kGeluA;
  const float e = expf(-fabsf(u));
  const float inverse = 1.0f / (1.0f + e);
  const float s = u < 0 ? e * inverse : inverse;
  return s + x * du * (e * inverse * inverse);
}

// Calls body(begin, whole) for this thread's kSize elements of `total`; not whole: some are beyond.
template <int kSize, typename Body>
__device__ __forceinline__ void ForMine(int64_t total, Body&& body) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kSize;
  if (begin < total) body(begin, begin + kSize <= total);
}

// y = gelu(h).
template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads) GeluKernel(const T* h, T* y, int64_t total) {
  ForMine<kSize>(total, [&](int64_t at, bool whole) {
    if constexpr (kSize > 1) {
      if (whole) {
        Pack<T> pack = LoadPack(h + at);
#pragma unroll
        for (int i = 0; i < kSize; ++i) pack.value[i] = Round<T>(Gelu(Load(pack.value[i])));
        StorePack(y + at, pack);
        return;
      }
    }
    for (int64_t i = at; i < at + kSize && i < total; ++i) y[i] = Round<T>(Gelu(Load(h[i])));
  });
}

// y times the slope of gelu at h.
template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads) SlopeKernel(const T* h, T* y, int64_t total) {
  ForMine<kSize>(total, [&](int64_t at, bool whole) {
    if constexpr (kSize > 1) {
      if (whole) {
        const Pack<T> x = StreamPack(h + at);
        Pack<T> pack = LoadPack(y + at);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          pack.value[i] = Round<T>(Load(pack.value[i]) * GeluSlope(Load(x.value[i])));
        }
        StorePack(y + at, pack);
        return;
      }
    }
    for (int64_t i = at; i < at + kSize && i < total; ++i) {
      y[i] = Round<T>(Load(y[i]) * GeluSlope(Load(h[i])));
    }
  });
}

// y = y + bias[n], row by row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BiasKernel(const T* bias, int64_t n, T* y, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < total) y[i] = Round<T>(Load(y[i]) + Load(bias[i % n]));
}

// c (+)= the sum of `slices` matrices of `total` elements.
template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads)
    SliceSumKernel(const float* slices, int count, bool accumulates, T* c, int64_t total) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kSize;
  if (at >= total) return;
  float sum[kSize] = {};
#pragma unroll 8
  for (int s = 0; s < count; ++s) {
    const float* const from = slices + s * total + at;
    if constexpr (kSize == 4) {
      const float4 x = *reinterpret_cast<const float4*>(from);
      sum[0] += x.x;
      sum[1] += x.y;
      sum[2] += x.z;
      sum[3] += x.w;
    } else {
      sum[0] += *from;
    }
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    c[at + i] = Round<T>(accumulates ? Load(c[at + i]) + sum[i] : sum[i]);
  }
}

// The plain product, in tiles of 32 x 32; a thread has four rows of one column.
constexpr int kTile = 32;

struct PlainOperands {
  const void* a;
  const void* b;
  void* c;
  int64_t m, n, k;
  int64_t a_row, a_column, a_batch;  // strides
  int64_t b_row, b_column, b_batch;
  bool accumulates;
};

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads) PlainKernel(const PlainOperands o) {
  __shared__ float a[kTile][kTile + 1], b[kTile][kTile + 1];
  const In* const from_a = static_cast<const In*>(o.a) + blockIdx.z * o.a_batch;
  const In* const from_b = static_cast<const In*>(o.b) + blockIdx.z * o.b_batch;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile;
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;  // y below 8
  float sum[4] = {};
  for (int64_t k = 0; k < o.k; k += kTile) {
#pragma unroll
    for (int i = y; i < kTile; i += 8) {
      const int64_t r = row + i, ka = k + x, kb = k + i, c = column + x;
      a[i][x] = r < o.m && ka < o.k ? Load(from_a[r * o.a_row + ka * o.a_column]) : 0.0f;
      b[i][x] = kb < o.k && c < o.n ? Load(from_b[kb * o.b_row + c * o.b_column]) : 0.0f;
    }
    __syncthreads();
    for (int p = 0; p < kTile; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += a[y + 8 * i][p] * b[p][x];
    }
    __syncthreads();
  }
  Out* const to = static_cast<Out*>(o.c) + blockIdx.z * o.m * o.n;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t r = row + y + 8 * i, c = column + x;
    if (r >= o.m || c >= o.n) continue;
    const int64_t at = r * o.n + c;
    to[at] = Round<Out>(o.accumulates ? Load(to[at]) + sum[i] : sum[i]);
  }
}

unsigned Blocks(int64_t threads) { return static_cast<unsigned>(CeilDiv(threads, kThreads)); }

int LaunchPlain(const ProductSpec& s, const ProductOperands& o, void* to, cudaStream_t stream) {
  const PlainOperands plain = {o.a,
                               o.b,
                               to,
                               s.m,
                               s.n,
                               s.k,
                               s.transpose_a ? 1 : s.k,
                               s.transpose_a ? s.m : 1,
                               s.m * s.k,
                               s.transpose_b ? 1 : s.n,
                               s.transpose_b ? s.k : 1,
                               s.shared_b ? 0 : s.k * s.n,
                               s.accumulates};
  const dim3 grid(static_cast<unsigned>(CeilDiv(s.m, kTile)),
                  static_cast<unsigned>(CeilDiv(s.n, kTile)), static_cast<unsigned>(s.batch));
  if (s.in == DType::kBF16 && s.out == DType::kBF16) {
    PlainKernel<bf16, bf16><<<grid, kThreads, 0, stream>>>(plain);
  } else if (s.in == DType::kBF16) {
    PlainKernel<bf16, float><<<grid, kThreads, 0, stream>>>(plain);
  } else {
    PlainKernel<float, float><<<grid, kThreads, 0, stream>>>(plain);
  }
  return LaunchError();
}

template <typename T>
int LaunchSliceSum(const ProductSpec& s, const void* slices, int64_t count, void* to,
                   cudaStream_t stream) {
  const int64_t total = s.m * s.n;
  const auto* from = static_cast<const float*>(slices);
  if (total % 4 == 0) {
    SliceSumKernel<T, 4><<<Blocks(total / 4), kThreads, 0, stream>>>(
        from, static_cast<int>(count), s.accumulates, static_cast<T*>(to), total);
  } else {
    SliceSumKernel<T, 1><<<Blocks(total), kThreads, 0, stream>>>(
        from, static_cast<int>(count), s.accumulates, static_cast<T*>(to), total);
  }
  return LaunchError();
}

// What the product left to do: bias on `h`, then gelu from `h` to c, or c times a slope.
template <typename T>
int LaunchRest(const ProductSpec& s, const ProductOperands& o, void* h, bool bias,
               cudaStream_t stream) {
  using Epilogue = ProductSpec::Epilogue;
  const int64_t total = s.m * s.n * s.batch;
  auto* const to = static_cast<T*>(h);
  auto* const c = static_cast<T*>(o.c);
  auto* const aux = static_cast<T*>(o.aux);
  if (bias) {
    BiasKernel<T>
        <<<Blocks(total), kThreads, 0, stream>>>(static_cast<const T*>(o.bias), s.n, to, total);
  }
  constexpr int kSize = Pack<T>::kSize;
  const bool vectors = IsAligned(c) && IsAligned(aux);
  const unsigned blocks = Blocks(vectors ? CeilDiv(total, kSize) : total);
  if (s.epilogue == Epilogue::kGelu || s.epilogue == Epilogue::kBiasGelu) {
    if (vectors) {
      GeluKernel<T, kSize><<<blocks, kThreads, 0, stream>>>(aux, c, total);
    } else {
      GeluKernel<T, 1><<<blocks, kThreads, 0, stream>>>(aux, c, total);
    }
  } else if (s.epilogue == Epilogue::kGeluGrad) {
    if (vectors) {
      SlopeKernel<T, kSize><<<blocks, kThreads, 0, stream>>>(aux, c, total);
    } else {
      SlopeKernel<T, 1><<<blocks, kThreads, 0, stream>>>(aux, c, total);
    }
  }
  return LaunchError();
}

bool HasBias(const ProductSpec& s) {
  return s.epilogue == ProductSpec::Epilogue::kBias ||
         s.epilogue == ProductSpec::Epilogue::kBiasGelu;
}
bool HasGelu(const ProductSpec& s) {
  return s.epilogue != ProductSpec::Epilogue::kNone && s.epilogue != ProductSpec::Epilogue::kBias;
}
// The library's gelu is not to f32's last bits, and wants rows of the pre-activation in eights.
bool MayFuse(const ProductSpec& s) {
  return !HasGelu(s) || ((s.in == DType::kBF16 || s.tf32) && s.n % 8 == 0);
}

ProductSpec WithoutGelu(ProductSpec spec) {
  spec.epilogue = HasBias(spec) ? ProductSpec::Epilogue::kBias : ProductSpec::Epilogue::kNone;
  spec.sums_columns = false;
  return spec;
}
ProductSpec WithoutEpilogue(ProductSpec spec) {
  spec.epilogue = ProductSpec::Epilogue::kNone;
  return spec;
}

// Slices are rows of both operands, so both are stored with k outermost.
bool CanSlice(const ProductSpec& s, int64_t slices) {
  return s.transpose_a && !s.transpose_b && s.batch == 1 && slices > 1 && s.k % slices == 0 &&
         s.epilogue == ProductSpec::Epilogue::kNone;
}
ProductSpec SliceOf(ProductSpec spec, int64_t slices) {
  spec.batch = slices;
  spec.k /= slices;
  spec.out = DType::kF32;
  spec.accumulates = false;
  return spec;
}
int64_t SliceBytes(const ProductSpec& s, int64_t slices) {
  const int64_t bytes = s.m * s.n * slices * static_cast<int64_t>(sizeof(float));
  return CeilDiv(bytes, 256) * 256;
}

// Slices of so few rows and sums of so many bytes are not worth it.
constexpr int64_t kLeastSlice = 64;
constexpr int64_t kMostSliceBytes = int64_t{64} << 20;
constexpr int64_t kFewTiles = 264;  // of 128 x 128: twice the processors
constexpr size_t kSliceFavorites = 3;

bool Empty(const ProductSpec& s) { return s.m * s.n * s.batch == 0 || s.k == 0; }

}  // namespace

std::string Product::KeyOf(const ProductSpec& s) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  std::string key = text(s.m) + "x" + text(s.n) + "x" + text(s.k);
  if (s.batch > 1) key += (s.shared_b ? "*s" : "*") + text(s.batch);
  key += std::string(" ") + (s.transpose_a ? "t" : "n") + (s.transpose_b ? "t" : "n");
  key += std::string(" ") + (s.in == DType::kF32 && s.tf32 ? "tf32" : NameOf(s.in));
  if (s.out != s.in) key += std::string(">") + NameOf(s.out);
  constexpr const char* kEpilogues[] = {"", " bias", " gelu", " bias gelu", " gelu grad"};
  key += kEpilogues[static_cast<int>(s.epilogue)];
  if (s.accumulates) key += " +=";
  if (s.sums_columns) key += " sums";
  return key;
}

std::vector<std::string> Product::Candidates(const ProductSpec& spec) {
  std::vector<std::string> all = {"default"};
  if (Empty(spec)) return all;
  const auto append = [&all](const std::string& kind, const ProductSpec& inner, size_t most) {
    const std::vector<std::string> ids = LtProduct::Candidates(inner);
    for (size_t i = 0; i < ids.size() && i < most; ++i) all.push_back(kind + ids[i]);
  };
  constexpr size_t kAll = SIZE_MAX;
  const std::vector<std::string> tiles_of = TileProduct::Candidates(spec);
  all.insert(all.end(), tiles_of.begin(), tiles_of.end());
  if (MayFuse(spec)) append("", spec, kAll);
  if (HasGelu(spec)) append("after+", WithoutGelu(spec), kAll);
  const int64_t tiles = CeilDiv(spec.m, 128) * CeilDiv(spec.n, 128);
  for (const int64_t slices : {2, 4, 8, 16, 32, 64}) {
    if (CanSlice(spec, slices) && spec.k / slices >= kLeastSlice && tiles <= kFewTiles &&
        SliceBytes(spec, slices) <= kMostSliceBytes) {
      append("slices" + std::to_string(slices) + "+", SliceOf(spec, slices), kSliceFavorites);
    }
  }
  all.push_back("plain");
  return all;
}

bool Product::Use(const ProductSpec& spec, const std::string& candidate, std::string* error) {
  spec_ = spec;
  tiles_ = nullptr;
  library_ = nullptr;
  slices_ = 1;
  fused_ = true;
  adds_bias_ = false;
  workspace_bytes_ = sums_at_ = 0;
  if (!UseKernels(spec, candidate, error)) return false;
  // Also where tiles sum columns: they may not take the operands.
  if (spec.sums_columns) {
    sums_at_ = CeilDiv(workspace_bytes_, 256) * 256;
    workspace_bytes_ = sums_at_ + ColumnSumsScratch(spec.m, spec.n);
  }
  return true;
}

bool Product::UseKernels(const ProductSpec& spec, const std::string& candidate,
                         std::string* error) {
  if (candidate == "plain" || Empty(spec)) return true;
  if (candidate.compare(0, 4, "tile") == 0) {
    tiles_ = TileProduct::Make(spec, candidate, error);
    if (tiles_ == nullptr) return false;
    workspace_bytes_ = tiles_->workspace_bytes();
    return true;
  }
  const size_t plus = candidate.find('+');
  const std::string kind = plus == std::string::npos ? "" : candidate.substr(0, plus);
  const std::string id = plus == std::string::npos ? candidate : candidate.substr(plus + 1);
  ProductSpec inner = spec;
  if (kind == "after") {
    inner = WithoutGelu(spec);
    fused_ = false;
  } else if (kind == "bare") {
    inner = WithoutEpilogue(spec);
    fused_ = false;
  } else if (kind.compare(0, 6, "slices") == 0) {
    slices_ = std::atoll(kind.c_str() + 6);
    if (!CanSlice(spec, slices_)) {
      *error = "cannot be cut as '" + candidate + "' says";
      return false;
    }
    inner = SliceOf(spec, slices_);
    workspace_bytes_ = SliceBytes(spec, slices_);
  }
  adds_bias_ = HasBias(inner);
  library_ = LtProduct::Make(inner, id, error);
  if (library_ == nullptr) return false;
  workspace_bytes_ += library_->workspace_bytes();
  return true;
}

std::shared_ptr<const Product> Product::Make(const ProductSpec& spec, const std::string& candidate,
                                             std::string* error) {
  std::shared_ptr<Product> product(new Product);
  if (candidate != "default") return product->Use(spec, candidate, error) ? product : nullptr;
  std::vector<std::string> tries;
  const std::string key = KeyOf(spec);
  for (const ProductRow& row : kProductRows) {
    if (key == row.key) tries.push_back(row.candidate);
  }
  for (const std::string& id : TileProduct::Candidates(spec)) tries.push_back(id);
  // What the library fuses into f32's products takes longer than a pass of ours.
  const bool fuses = MayFuse(spec) && !(HasGelu(spec) && spec.in == DType::kF32);
  if (fuses) tries.push_back("default");
  if (HasGelu(spec)) tries.push_back("after+default");
  if (spec.epilogue != Epilogue::kNone) tries.push_back("bare+default");
  tries.push_back("plain");
  std::string refused;
  for (const std::string& one : tries) {
    if (product->Use(spec, one, &refused)) return product;
  }
  *error = refused;
  return nullptr;
}

// The product alone, without what the library adds to it.
int Product::MultiplyPlain(const ProductOperands& o, void* to, cudaStream_t stream) const {
  if (spec_.k > 0) return LaunchPlain(spec_, o, to, stream);
  if (spec_.accumulates) return 0;
  const int64_t bytes = spec_.m * spec_.n * spec_.batch * static_cast<int64_t>(SizeOf(spec_.out));
  return static_cast<int>(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream));
}

int Product::MultiplySlices(const ProductOperands& o, cudaStream_t stream) const {
  ProductOperands inner = o;
  inner.c = o.workspace;
  inner.workspace = static_cast<char*>(o.workspace) + SliceBytes(spec_, slices_);
  if (const int error = library_->Launch(inner, stream); error != 0) return error;
  return spec_.out == DType::kBF16 ? LaunchSliceSum<bf16>(spec_, inner.c, slices_, o.c, stream)
                                   : LaunchSliceSum<float>(spec_, inner.c, slices_, o.c, stream);
}

int Product::Launch(const ProductOperands& o, cudaStream_t stream) const {
  if (spec_.n * spec_.batch == 0 || (spec_.m == 0 && !spec_.sums_columns)) return 0;
  if (tiles_ != nullptr && tiles_->Takes(o)) return tiles_->Launch(o, stream);
  if (const int error = LaunchProduct(o, stream); error != 0 || !spec_.sums_columns) return error;
  auto* const scratch = reinterpret_cast<float*>(static_cast<char*>(o.workspace) + sums_at_);
  if (spec_.out == DType::kBF16) {
    LaunchColumnSums(static_cast<const bf16*>(o.c), spec_.m, spec_.n, scratch, o.sums, stream);
  } else {
    LaunchColumnSums(static_cast<const float*>(o.c), spec_.m, spec_.n, scratch, o.sums, stream);
  }
  return LaunchError();
}

int Product::LaunchProduct(const ProductOperands& o, cudaStream_t stream) const {
  if (spec_.m == 0) return 0;
  const bool library = library_ != nullptr && library_->Takes(o);
  if (library && slices_ > 1) return MultiplySlices(o, stream);
  if (library && fused_) return library_->Launch(o, stream);
  const bool gelu = spec_.epilogue == Epilogue::kGelu || spec_.epilogue == Epilogue::kBiasGelu;
  void* const h = gelu ? o.aux : o.c;
  int error = 0;
  if (library) {
    ProductOperands inner = o;
    inner.c = h;
    inner.aux = nullptr;
    error = library_->Launch(inner, stream);
  } else {
    error = MultiplyPlain(o, h, stream);
  }
  if (error != 0 || spec_.epilogue == Epilogue::kNone) return error;
  const bool bias = HasBias(spec_) && !(library && adds_bias_);
  return spec_.out == DType::kBF16 ? LaunchRest<bf16>(spec_, o, h, bias, stream)
                                   : LaunchRest<float>(spec_, o, h, bias, stream);
}

}  // namespace weft::cuda
