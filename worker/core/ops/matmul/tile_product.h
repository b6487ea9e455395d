// Products in bf16 whose epilogue has gelu or its gradient: kernels of CUTLASS on Hopper's tensor
// cores, in which one tile's epilogue runs beside the next one's product. Bound once and launched
// often. Immutable, so any thread may launch it. Builds without CUTLASS have none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/core/ops/matmul/lt_product.h"

namespace weft::cuda {

class TileProduct {
 public:
  // Ids of kernels for the product, each giving the same bits every time; none where it has another
  // epilogue, layout or type, or where the GPU is another.
  static std::vector<std::string> Candidates(const ProductSpec& spec);
  // nullptr, with the reason in *error, when there is no such kernel.
  static std::shared_ptr<const TileProduct> Make(const ProductSpec& spec, const std::string& id,
                                                 std::string* error);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Operands on 16 bytes.
  bool Takes(const ProductOperands& operands) const;
  // 0 or an error number (cudaError_t).
  int Launch(const ProductOperands& operands, cudaStream_t stream) const;

 private:
  TileProduct() = default;

  ProductSpec spec_;
  const struct TileKernel* kernel_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace weft::cuda
