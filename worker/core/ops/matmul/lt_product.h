// One call of cuBLASLt, bound once and launched often. All matrices are row-major. Immutable, so
// any thread may launch it. Standard library and CUDA only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "fabric/base/dtype.h"

namespace weft::cuda {

// c[m, n] = op(a) op(b), `batch` times.
struct ProductSpec {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // a is stored [k, m]
  bool transpose_b = false;  // b is stored [n, k]
  int64_t batch = 1;
  bool shared_b = false;  // one b for all
  DType in = DType::kF32;
  DType out = DType::kF32;
  bool tf32 = false;         // f32 operands multiply in TF32
  bool accumulates = false;  // adds to c
  enum class Epilogue {
    kNone,
    kBias,      // + bias[n]
    kGelu,      // gelu(x), and x itself to aux[m, n]
    kBiasGelu,  // the same of x + bias[n]
    kGeluGrad,  // x times the slope of gelu at aux[m, n]
  };
  Epilogue epilogue = Epilogue::kNone;
  bool sums_columns = false;  // also the sums of c's columns; not LtProduct
};

struct ProductOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;  // as `out`
  void* aux = nullptr;         // as `out`
  float* sums = nullptr;       // [n]
  void* workspace = nullptr;   // workspace_bytes(), on 256 bytes
};

class LtProduct {
 public:
  // Ids of algorithms that could run, the library's favorites first; each gives the same bits every
  // time. An id means the same in every process with this library and GPU model: it is "lt:" and
  // the algorithm's configuration, or "lx:" and its words where the configuration does not say it
  // all.
  static std::vector<std::string> Candidates(const ProductSpec& spec);
  // nullptr, with the reason in *error, when there is no such algorithm. "default": the favorite.
  static std::shared_ptr<const LtProduct> Make(const ProductSpec& spec,
                                               const std::string& candidate, std::string* error);
  ~LtProduct();
  LtProduct(const LtProduct&) = delete;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Whether there is an algorithm for operands aligned as these are.
  bool Takes(const ProductOperands& operands) const;
  // 0 or an error number (cudaError_t).
  int Launch(const ProductOperands& operands, cudaStream_t stream) const;

 private:
  LtProduct() = default;
  struct Layouts;
  struct Algorithm;

  std::unique_ptr<Layouts> layouts_;
  std::unique_ptr<Algorithm> algorithm_;  // for operands on 16 bytes
  std::unique_ptr<Algorithm> unaligned_;  // for others; null: there is none
  int64_t workspace_bytes_ = 0;
};

}  // namespace weft::cuda
