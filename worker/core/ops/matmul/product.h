// A matrix product and what follows it, bound once and launched often: by cuBLASLt with the
// epilogue in it, by cuBLASLt with the epilogue in a kernel of ours, by cuBLASLt in slices of k
// that a kernel of ours adds, by a kernel of tiles (TileProduct), or, where the library refuses, by
// a plain kernel. Immutable, so any
// thread may launch it. Standard library and CUDA only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "worker/core/ops/matmul/lt_product.h"
#include "worker/core/ops/matmul/tile_product.h"

namespace weft::cuda {

class Product {
 public:
  // What could run, "default" first; each gives the same bits every time:
  //   ID             the library's algorithm (LtProduct), with the epilogue;
  //   after+ID       the same without gelu, which a kernel of ours adds;
  //   tileID         a kernel of TileProduct, with the epilogue;
  //   slicesS+ID     k in S equal slices, whose products are added in order;
  //   plain          a kernel of ours, slow.
  static std::vector<std::string> Candidates(const ProductSpec& spec);
  // nullptr, with the reason in *error, when there is no such candidate. "default": the row of
  // product_table.h, or else a kernel of tiles, the library's favorite, or the plain kernel.
  static std::shared_ptr<const Product> Make(const ProductSpec& spec, const std::string& candidate,
                                             std::string* error);
  // What product_table.h has rows by: shape, layout, types and epilogue.
  static std::string KeyOf(const ProductSpec& spec);

  // Of ProductOperands::workspace.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // 0 or an error number (cudaError_t).
  int Launch(const ProductOperands& operands, cudaStream_t stream) const;

 private:
  using Epilogue = ProductSpec::Epilogue;
  Product() = default;
  bool Use(const ProductSpec& spec, const std::string& id, std::string* error);
  bool UseKernels(const ProductSpec& spec, const std::string& id, std::string* error);
  int LaunchProduct(const ProductOperands& operands, cudaStream_t stream) const;
  int MultiplyPlain(const ProductOperands& operands, void* to, cudaStream_t stream) const;
  int MultiplySlices(const ProductOperands& operands, cudaStream_t stream) const;

  ProductSpec spec_;
  std::shared_ptr<const TileProduct> tiles_;  // not null: it does it all
  std::shared_ptr<const LtProduct> library_;  // null: the plain kernel
  int64_t slices_ = 1;                        // more: `library_` multiplies them as a batch, in f32
  bool fused_ = true;                         // `library_` does the whole epilogue
  bool adds_bias_ = false;                    // `library_` adds the bias
  int64_t sums_at_ = 0;                       // where in the workspace sums of columns are added
  int64_t workspace_bytes_ = 0;
};

}  // namespace weft::cuda
