// cuBLASLt is column-major: the row-major c = a b is its c' = b' a', so its first matrix is our b.
#ifdef WEFT_CUDA
#include "worker/core/ops/matmul/lt_product.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <cublasLt.h>

namespace weft::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kMostFavorites = 8;
// Products of so few tiles leave processors idle, unless k is cut too, in parts of this length.
constexpr int64_t kFewTiles = 128;
constexpr int64_t kLeastSplit = 128;
constexpr size_t kMostSplit = 3;  // favorites

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

uint32_t ConfigOf(const cublasLtMatmulAlgo_t& algo,
                  cublasLtMatmulAlgoConfigAttributes_t attribute) {
  uint32_t value = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, SizeOfConfig(attribute), &written);
  return value;
}

bool SetConfig(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
               uint32_t value) {
  const auto narrow = static_cast<uint16_t>(value);
  const size_t size = SizeOfConfig(attribute);
  const void* from = size == sizeof(narrow) ? static_cast<const void*>(&narrow) : &value;
  return cublasLtMatmulAlgoConfigSetAttribute(algo, attribute, from, size) == CUBLAS_STATUS_SUCCESS;
}

// What the algorithm can do, 0 where the library does not say.
uint32_t CapabilityOf(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoCapAttributes_t cap) {
  uint32_t value = 0;
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCapGetAttribute(&algo, cap, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : 0;
}

std::string Joined(const char* scheme, const std::vector<uint64_t>& numbers) {
  std::string text = scheme;
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ".") + std::to_string(numbers[i]);
  }
  return text;
}

std::string ConfigId(const cublasLtMatmulAlgo_t& algo) {
  std::vector<uint64_t> numbers = {ConfigOf(algo, CUBLASLT_ALGO_CONFIG_ID)};
  for (const auto attribute : kConfig) numbers.push_back(ConfigOf(algo, attribute));
  return Joined("lt:", numbers);
}

// The numbers behind a scheme of three letters, as Joined wrote them.
std::vector<uint64_t> NumbersOf(const std::string& id) {
  std::vector<uint64_t> numbers;
  for (size_t at = 3; at < id.size();) {
    const size_t end = std::min(id.find('.', at), id.size());
    numbers.push_back(std::strtoull(id.c_str() + at, nullptr, 10));
    at = end + 1;
  }
  return numbers;
}

}  // namespace

struct LtProduct::Layouts {
  ProductSpec spec;
  bool has_bias = false, has_aux = false;
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
    l->has_bias = bias;
    l->has_aux = epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS;
    if (l->has_aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec.n);
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
    if (ok) l->SetPointers(Somewhere(16), Somewhere(16), l->desc);
    return ok ? std::move(l) : nullptr;
  }

  // Until a launch, only the alignment of pointers is looked at.
  static const void* Somewhere(uint32_t alignment) {
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(alignment));
  }

  void SetPointers(const void* bias, const void* aux, cublasLtMatmulDescOpaque_t* to) const {
    if (has_bias) {
      cublasLtMatmulDescSetAttribute(to, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
    if (has_aux) {
      cublasLtMatmulDescSetAttribute(to, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                     sizeof(aux));
    }
  }

  // The library's favorites that give the same bits each time.
  std::vector<cublasLtMatmulHeuristicResult_t> Favorites(uint32_t alignment, int most) const {
    cublasLtMatmulDescOpaque_t aligned = *desc;
    SetPointers(Somewhere(alignment), Somewhere(alignment), &aligned);
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
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(Handle(), &aligned, first, second, result, result,
                                       preference, most, results.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    const auto unfit = [](const cublasLtMatmulHeuristicResult_t& r) {
      return r.state != CUBLAS_STATUS_SUCCESS ||
             ConfigOf(r.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
                 CUBLASLT_REDUCTION_SCHEME_INPLACE;
    };
    results.erase(std::remove_if(results.begin(), results.end(), unfit), results.end());
    return results;
  }

  // Whether the algorithm can run here, giving the same bits each time; fills *made.
  bool Check(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulHeuristicResult_t* made) const {
    if (ConfigOf(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
        CUBLASLT_REDUCTION_SCHEME_INPLACE) {
      return false;
    }
    *made = {};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(Handle(), desc, first, second, result, result, &algo, made);
    made->algo = algo;
    return status == CUBLAS_STATUS_SUCCESS && made->state == CUBLAS_STATUS_SUCCESS &&
           made->workspaceSize <= kWorkspace;
  }

  // The algorithm that an id of Candidates means.
  bool FromId(const std::string& id, cublasLtMatmulHeuristicResult_t* made) const {
    const std::vector<uint64_t> numbers = NumbersOf(id);
    cublasLtMatmulAlgo_t algo = {};
    if (id.compare(0, 3, "lx:") == 0 && numbers.size() == std::size(algo.data)) {
      std::copy(numbers.begin(), numbers.end(), algo.data);
      return Check(algo, made);
    }
    if (id.compare(0, 3, "lt:") != 0 || numbers.size() != std::size(kConfig) + 1) return false;
    bool ok = cublasLtMatmulAlgoInit(Handle(), ComputeOf(spec), CUDA_R_32F, TypeOf(spec.in),
                                     TypeOf(spec.in), TypeOf(spec.out), TypeOf(spec.out),
                                     static_cast<int>(numbers[0]), &algo) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; ok && i < std::size(kConfig); ++i) {
      ok = SetConfig(&algo, kConfig[i], static_cast<uint32_t>(numbers[i + 1]));
    }
    return ok && Check(algo, made);
  }

  std::string IdOf(const cublasLtMatmulAlgo_t& algo) const {
    std::string id = ConfigId(algo);
    cublasLtMatmulHeuristicResult_t again;
    if (FromId(id, &again) && std::memcmp(&again.algo, &algo, sizeof(algo)) == 0) return id;
    return Joined("lx:", {std::begin(algo.data), std::end(algo.data)});
  }

  // With k cut into parts, which are added by a step of their own.
  void AppendSplits(const cublasLtMatmulAlgo_t& algo, std::vector<std::string>* ids) const {
    if (CapabilityOf(algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) == 0 ||
        (CapabilityOf(algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK) &
         CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0) {
      return;
    }
    for (const uint32_t parts : {2u, 4u, 8u, 16u, 32u}) {
      cublasLtMatmulAlgo_t split = algo;
      cublasLtMatmulHeuristicResult_t made;
      if (spec.k < parts * kLeastSplit ||
          !SetConfig(&split, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) ||
          !SetConfig(&split, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                     CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
          !Check(split, &made)) {
        continue;
      }
      ids->push_back(IdOf(split));
    }
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
  const auto favorites = layouts->Favorites(16, kMostFavorites);
  for (const auto& found : favorites) ids.push_back(layouts->IdOf(found.algo));
  const int64_t tiles = (spec.m + 127) / 128 * ((spec.n + 127) / 128) * spec.batch;
  for (size_t i = 0; i < favorites.size() && i < kMostSplit && tiles <= kFewTiles; ++i) {
    layouts->AppendSplits(favorites[i].algo, &ids);
  }
  std::vector<std::string> unique;
  for (std::string& id : ids) {
    if (std::find(unique.begin(), unique.end(), id) == unique.end()) unique.push_back(id);
  }
  return unique;
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
  // A pre-activation off its 16 bytes is for nobody.
  const auto unaligned =
      layouts.has_aux ? std::vector<cublasLtMatmulHeuristicResult_t>()
                      : layouts.Favorites(
                            static_cast<uint32_t>(std::min(SizeOf(spec.in), SizeOf(spec.out))), 1);
  if (!unaligned.empty()) product->unaligned_ = use(unaligned[0]);
  if (product->algorithm_ == nullptr) {
    *error = "cuBLASLt has no algorithm '" + candidate + "' for " + std::to_string(spec.m) + "x" +
             std::to_string(spec.n) + "x" + std::to_string(spec.k);
    return nullptr;
  }
  return product;
}

namespace {

bool OnSixteen(const ProductOperands& o) {
  bool aligned = true;
  for (const void* p :
       {o.a, o.b, static_cast<const void*>(o.c), o.bias, static_cast<const void*>(o.aux)}) {
    aligned = aligned && (reinterpret_cast<uintptr_t>(p) & 15) == 0;
  }
  return aligned;
}

}  // namespace

bool LtProduct::Takes(const ProductOperands& o) const {
  return OnSixteen(o) || unaligned_ != nullptr;
}

int LtProduct::Launch(const ProductOperands& o, cudaStream_t stream) const {
  const Algorithm* algorithm = OnSixteen(o) ? algorithm_.get() : unaligned_.get();
  if (algorithm == nullptr) return static_cast<int>(cudaErrorMisalignedAddress);
  cublasLtMatmulDescOpaque_t desc = *layouts_->desc;
  layouts_->SetPointers(o.bias, o.aux, &desc);
  const float alpha = 1, beta = layouts_->spec.accumulates ? 1 : 0;
  const cublasStatus_t status =
      cublasLtMatmul(Handle(), &desc, &alpha, o.b, layouts_->first, o.a, layouts_->second, &beta,
                     o.c, layouts_->result, o.c, layouts_->result, &algorithm->algo, o.workspace,
                     algorithm->workspace, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return 0;
  // The runtime's own error says more, where there is one.
  const cudaError_t error = cudaGetLastError();
  return static_cast<int>(error != cudaSuccess ? error : cudaErrorUnknown);
}

}  // namespace weft::cuda
#endif  // WEFT_CUDA
