// cuBLASLt is column-major: the row-major c = a b is its c' = b' a', so its first matrix is our b.
#ifdef WEFT_CUDA
#include "worker/core/ops/matmul/lt_product.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <cublasLt.h>

namespace weft::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kMostCandidates = 8;

cublasLtHandle_t Handle() {
  // One a process, like the context; it goes when the process does.
  static cublasLtHandle_t const handle = [] {
    cublasLtHandle_t made = nullptr;
    return cublasLtCreate(&made) == CUBLAS_STATUS_SUCCESS ? made : nullptr;
  }();
  return handle;
}

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

cublasComputeType_t ComputeOf(const ProductSpec& spec) {
  return spec.tf32 && spec.in == DType::kF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cublasLtEpilogue_t EpilogueOf(const ProductSpec& spec) {
  switch (spec.epilogue) {
    case ProductSpec::Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case ProductSpec::Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case ProductSpec::Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case ProductSpec::Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case ProductSpec::Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// What an algorithm is made of, as numbers that its id spells out.
constexpr cublasLtMatmulAlgoConfigAttributes_t kConfig[] = {
    CUBLASLT_ALGO_CONFIG_TILE_ID,        CUBLASLT_ALGO_CONFIG_STAGES_ID,
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM,     CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
    CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,  CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
    CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
};
// The last two are 16 bits wide.
size_t SizeOfConfig(cublasLtMatmulAlgoConfigAttributes_t attribute) {
  return attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                 attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
             ? sizeof(uint16_t)
             : sizeof(uint32_t);
}

std::string IdOf(const cublasLtMatmulAlgo_t& algo) {
  int32_t id = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id), &written);
  std::string text = "lt:" + std::to_string(id);
  for (const auto attribute : kConfig) {
    uint32_t value = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, SizeOfConfig(attribute),
                                         &written);
    text += "." + std::to_string(value);
  }
  return text;
}

}  // namespace

struct LtProduct::Layouts {
  ProductSpec spec;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;

  ~Layouts() {
    if (desc != nullptr) cublasLtMatmulDescDestroy(desc);
    for (const cublasLtMatrixLayout_t layout : {first, second, result}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  static std::unique_ptr<Layouts> Make(const ProductSpec& spec) {
    auto l = std::make_unique<Layouts>();
    l->spec = spec;
    bool ok =
        cublasLtMatmulDescCreate(&l->desc, ComputeOf(spec), CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      ok = ok && cublasLtMatmulDescSetAttribute(l->desc, attribute, &value, sizeof(value)) ==
                     CUBLAS_STATUS_SUCCESS;
    };
    const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, op(spec.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, op(spec.transpose_a));
    const cublasLtEpilogue_t epilogue = EpilogueOf(spec);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    const bool bias = spec.epilogue == ProductSpec::Epilogue::kBias ||
                      spec.epilogue == ProductSpec::Epilogue::kBiasGelu;
    if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(spec.out)));
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec.n);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<int32_t>(TypeOf(spec.out)));
    }
    const auto layout = [&](cublasLtMatrixLayout_t* to, DType dtype, int64_t rows, int64_t columns,
                            int64_t stride) {
      ok = ok && cublasLtMatrixLayoutCreate(to, TypeOf(dtype), static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns),
                                            rows) == CUBLAS_STATUS_SUCCESS;
      if (!ok || spec.batch == 1) return;
      const auto batch = static_cast<int32_t>(spec.batch);
      ok = cublasLtMatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                            sizeof(batch)) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &stride, sizeof(stride)) == CUBLAS_STATUS_SUCCESS;
    };
    const int64_t b_stride = spec.shared_b ? 0 : spec.n * spec.k;
    layout(&l->first, spec.in, spec.transpose_b ? spec.k : spec.n,
           spec.transpose_b ? spec.n : spec.k, b_stride);
    layout(&l->second, spec.in, spec.transpose_a ? spec.m : spec.k,
           spec.transpose_a ? spec.k : spec.m, spec.m * spec.k);
    layout(&l->result, spec.out, spec.n, spec.m, spec.m * spec.n);
    return ok ? std::move(l) : nullptr;
  }

  // The library's favorites that give the same bits each time.
  std::vector<cublasLtMatmulHeuristicResult_t> Favorites(uint32_t alignment, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    // Not in place: those add in the order in which blocks arrive.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, alignment);
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        Handle(), desc, first, second, result, result, preference, most, results.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    results.erase(std::remove_if(results.begin(), results.end(),
                                 [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; }),
                  results.end());
    return results;
  }

  // The algorithm that an id of Candidates means.
  bool FromId(const std::string& id, cublasLtMatmulHeuristicResult_t* made) const {
    std::vector<uint32_t> numbers;
    for (size_t at = 3; at < id.size();) {
      size_t end = id.find('.', at);
      if (end == std::string::npos) end = id.size();
      numbers.push_back(static_cast<uint32_t>(std::strtoul(id.c_str() + at, nullptr, 10)));
      at = end + 1;
    }
    if (id.compare(0, 3, "lt:") != 0 || numbers.size() != std::size(kConfig) + 1) return false;
    cublasLtMatmulAlgo_t algo;
    if (cublasLtMatmulAlgoInit(Handle(), ComputeOf(spec), CUDA_R_32F, TypeOf(spec.in),
                               TypeOf(spec.in), TypeOf(spec.out), TypeOf(spec.out),
                               static_cast<int>(numbers[0]), &algo) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    for (size_t i = 0; i < std::size(kConfig); ++i) {
      const auto narrow = static_cast<uint16_t>(numbers[i + 1]);
      const size_t size = SizeOfConfig(kConfig[i]);
      const void* value = size == sizeof(narrow) ? static_cast<const void*>(&narrow)
                                                 : static_cast<const void*>(&numbers[i + 1]);
      if (cublasLtMatmulAlgoConfigSetAttribute(&algo, kConfig[i], value, size) !=
          CUBLAS_STATUS_SUCCESS) {
        return false;
      }
    }
    return cublasLtMatmulAlgoCheck(Handle(), desc, first, second, result, result, &algo, made) ==
               CUBLAS_STATUS_SUCCESS &&
           made->state == CUBLAS_STATUS_SUCCESS && made->workspaceSize <= kWorkspace;
  }
};

struct LtProduct::Algorithm {
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};

LtProduct::~LtProduct() = default;

std::vector<std::string> LtProduct::Candidates(const ProductSpec& spec) {
  std::vector<std::string> ids;
  const auto layouts = Handle() == nullptr ? nullptr : Layouts::Make(spec);
  if (layouts == nullptr) return ids;
  for (const auto& found : layouts->Favorites(16, kMostCandidates)) {
    ids.push_back(IdOf(found.algo));
  }
  return ids;
}

std::shared_ptr<const LtProduct> LtProduct::Make(const ProductSpec& spec,
                                                 const std::string& candidate, std::string* error) {
  if (Handle() == nullptr) {
    *error = "cuBLASLt cannot be used on this device";
    return nullptr;
  }
  std::shared_ptr<LtProduct> product(new LtProduct);
  product->layouts_ = Layouts::Make(spec);
  if (product->layouts_ == nullptr) {
    *error = "cuBLASLt refuses the operands' layout";
    return nullptr;
  }
  const Layouts& layouts = *product->layouts_;
  const auto use = [&](const cublasLtMatmulHeuristicResult_t& found) {
    product->workspace_bytes_ =
        std::max(product->workspace_bytes_, static_cast<int64_t>(found.workspaceSize));
    const cublasLtMatmulAlgo_t algo = found.algo;
    return std::make_unique<Algorithm>(Algorithm{algo, found.workspaceSize});
  };
  if (candidate == "default") {
    const auto aligned = layouts.Favorites(16, 1);
    if (!aligned.empty()) product->algorithm_ = use(aligned[0]);
  } else {
    cublasLtMatmulHeuristicResult_t made;
    if (layouts.FromId(candidate, &made)) product->algorithm_ = use(made);
  }
  const auto unaligned =
      layouts.Favorites(static_cast<uint32_t>(std::min(SizeOf(spec.in), SizeOf(spec.out))), 1);
  if (!unaligned.empty()) product->unaligned_ = use(unaligned[0]);
  if (product->algorithm_ == nullptr) {
    *error = "cuBLASLt has no algorithm '" + candidate + "' for " + std::to_string(spec.m) + "x" +
             std::to_string(spec.n) + "x" + std::to_string(spec.k);
    return nullptr;
  }
  return product;
}

int LtProduct::Launch(const ProductOperands& o, cudaStream_t stream) const {
  // The descriptor is shared by launches from one thread; pointers are read when it is queued.
  const cublasLtMatmulDesc_t desc = layouts_->desc;
  if (o.bias != nullptr) {
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o.bias,
                                   sizeof(o.bias));
  }
  if (o.aux != nullptr) {
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o.aux,
                                   sizeof(o.aux));
  }
  bool aligned = true;
  for (const void* p :
       {o.a, o.b, static_cast<const void*>(o.c), o.bias, static_cast<const void*>(o.aux)}) {
    aligned = aligned && (reinterpret_cast<uintptr_t>(p) & 15) == 0;
  }
  const Algorithm* algorithm = aligned ? algorithm_.get() : unaligned_.get();
  if (algorithm == nullptr) return static_cast<int>(cudaErrorMisalignedAddress);
  const float alpha = 1, beta = layouts_->spec.accumulates ? 1 : 0;
  const cublasStatus_t status =
      cublasLtMatmul(Handle(), desc, &alpha, o.b, layouts_->first, o.a, layouts_->second, &beta,
                     o.c, layouts_->result, o.c, layouts_->result, &algorithm->algo, o.workspace,
                     algorithm->workspace, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return 0;
  // The runtime's own error says more, where there is one.
  const cudaError_t error = cudaGetLastError();
  return static_cast<int>(error != cudaSuccess ? error : cudaErrorUnknown);
}

}  // namespace weft::cuda
#endif  // WEFT_CUDA
