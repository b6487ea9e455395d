// Products on CUDA: cuBLASLt does them, with bias and GELU in its epilogue where it can; elsewhere
// these follow in a kernel of ours. Products over nothing are filled in.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/lt_product.h"

namespace weft {
namespace {

using cuda::bf16;
using cuda::LtProduct;
using cuda::ProductSpec;
using cuda::StreamOf;
using Epilogue = ProductSpec::Epilogue;

constexpr int kThreads = 256;
constexpr float kGeluSlope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

__device__ __forceinline__ float Gelu(float x) {
  return x / (1.0f + expf(-x * (x * x * kGeluSlope * kGeluCube + kGeluSlope)));
}

__device__ __forceinline__ float GeluSlope(float x) {
  // The slope is 0 or 1 further out; the limit keeps 0 * infinity away.
  x = fminf(fmaxf(x, -12.0f), 12.0f);
  const float s = 1.0f / (1.0f + expf(-x * (x * x * kGeluSlope * kGeluCube + kGeluSlope)));
  return s + x * (3 * kGeluSlope * kGeluCube * x * x + kGeluSlope) * s * (1.0f - s);
}

// What an epilogue would have done: `h` holds the product, or zeros are meant where it is empty.
enum class Finish { kBias, kGelu, kGeluGrad };

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FinishKernel(Finish finish, bool empty, T* y, T* h, const T* bias, int64_t n, int64_t total) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= total) return;
  if (finish == Finish::kGeluGrad) {
    const float x = empty ? 0.0f : cuda::Load(y[i]);
    y[i] = cuda::Round<T>(x * GeluSlope(cuda::Load(h[i])));
    return;
  }
  float x = empty ? 0.0f : cuda::Load(h[i]);
  if (bias != nullptr) x += cuda::Load(bias[i % n]);
  const T rounded = cuda::Round<T>(x);
  h[i] = rounded;
  if (finish == Finish::kGelu) y[i] = cuda::Round<T>(Gelu(cuda::Load(rounded)));
}

struct ProductState {
  ProductSpec spec;
  std::shared_ptr<const LtProduct> product;  // null: nothing to multiply
  // The epilogue that was wanted, where `product` goes without it.
  Epilogue rest = Epilogue::kNone;
  bool bias = false;
};

// With the epilogue in the product or, where the library has none such, after it.
Bound BindProduct(ProductSpec spec, const std::string& candidate) {
  auto state = std::make_shared<ProductState>();
  state->bias = spec.epilogue == Epilogue::kBias || spec.epilogue == Epilogue::kBiasGelu;
  state->spec = spec;
  Bound bound;
  if (spec.m * spec.n * spec.batch == 0 || spec.k == 0) {
    state->rest = spec.epilogue;
    bound.state = std::move(state);
    return bound;
  }
  std::string error;
  state->product = LtProduct::Make(spec, candidate, &error);
  if (state->product == nullptr && spec.epilogue != Epilogue::kNone) {
    state->rest = spec.epilogue;
    spec.epilogue = Epilogue::kNone;
    state->product = LtProduct::Make(spec, "default", &error);
  }
  if (state->product == nullptr) return {.error = error};
  bound.scratch_bytes = state->product->workspace_bytes();
  bound.state = std::move(state);
  return bound;
}

// `y`: the result; `h`: where the pre-activation is or goes (y itself where there is none).
template <typename T>
void LaunchFinish(const ProductState& s, const cuda::ProductOperands& o, cudaStream_t stream) {
  const int64_t total = s.spec.m * s.spec.n * s.spec.batch;
  const bool empty = s.product == nullptr;
  Finish finish = Finish::kBias;
  auto* y = static_cast<T*>(o.c);
  T* h = y;
  if (s.rest == Epilogue::kGelu || s.rest == Epilogue::kBiasGelu) {
    finish = Finish::kGelu;
    h = static_cast<T*>(o.aux);
  } else if (s.rest == Epilogue::kGeluGrad) {
    finish = Finish::kGeluGrad;
    h = static_cast<T*>(o.aux);
  }
  FinishKernel<T><<<static_cast<unsigned>(cuda::CeilDiv(total, kThreads)), kThreads, 0, stream>>>(
      finish, empty, y, h, s.bias ? static_cast<const T*>(o.bias) : nullptr, s.spec.n, total);
}

int LaunchProduct(const ProductState& s, cuda::ProductOperands o, const KernelArgs& args) {
  const int64_t total = s.spec.m * s.spec.n * s.spec.batch;
  if (total == 0) return 0;
  const cudaStream_t stream = StreamOf(args);
  o.workspace = args.scratch;
  if (s.product != nullptr) {
    cuda::ProductOperands main = o;
    if (s.rest != Epilogue::kNone) {
      main.bias = main.aux = nullptr;
      // The product itself is the pre-activation.
      if (s.rest == Epilogue::kGelu || s.rest == Epilogue::kBiasGelu) main.c = o.aux;
    }
    if (const int error = s.product->Launch(main, stream); error != 0) return error;
  } else if (s.rest == Epilogue::kNone) {
    return static_cast<int>(
        cudaMemsetAsync(o.c, 0, static_cast<size_t>(total) * SizeOf(s.spec.out), stream));
  }
  if (s.rest == Epilogue::kNone) return 0;
  if (s.spec.out == DType::kBF16) {
    LaunchFinish<bf16>(s, o, stream);
  } else {
    LaunchFinish<float>(s, o, stream);
  }
  return cuda::LaunchError();
}

// ---- matmul: a, b -> y.

ProductSpec MatmulSpec(const BindArgs& args) {
  const Shape &a = args.in[0].shape, &b = args.in[1].shape, &y = args.out[0].shape;
  ProductSpec spec;
  spec.transpose_a = args.attrs->GetBool("transpose_a");
  spec.transpose_b = args.attrs->GetBool("transpose_b");
  spec.tf32 = args.attrs->GetBool("tf32");
  spec.m = y.dim(-2);
  spec.n = y.dim(-1);
  spec.k = a.dim(spec.transpose_a ? -2 : -1);
  spec.in = args.in[0].dtype;
  spec.out = args.out[0].dtype;
  int64_t batch = 1;
  for (int i = 0; i < a.rank() - 2; ++i) batch *= a.dim(i);
  spec.shared_b = b.rank() < a.rank();
  if (spec.shared_b && !spec.transpose_a) {
    spec.m *= batch;  // rows of all batches lie one after the other
  } else {
    spec.batch = batch;
  }
  return spec;
}

// ---- linear, linear_gelu, linear_grad_gelu: x, w, ... -> y, h?

ProductSpec LinearSpec(const BindArgs& args) {
  ProductSpec spec;
  spec.transpose_b = args.attrs->GetBool("transpose_w");
  spec.tf32 = args.attrs->GetBool("tf32");
  spec.k = args.in[0].shape.dim(-1);
  spec.n = args.out[0].shape.dim(-1);
  int64_t rows = 1;
  for (int i = 0; i < args.in[0].shape.rank() - 1; ++i) rows *= args.in[0].shape.dim(i);
  spec.m = rows;
  spec.in = args.in[0].dtype;
  spec.out = args.out[0].dtype;
  return spec;
}

template <Epilogue kPlain, Epilogue kWithBias>
ProductSpec LinearSpecWith(const BindArgs& args) {
  ProductSpec spec = LinearSpec(args);
  spec.epilogue = args.in_count > 2 ? kWithBias : kPlain;
  return spec;
}

// ---- linear_grad_w: x, dy -> dw.

ProductSpec GradWSpec(const BindArgs& args) {
  ProductSpec spec;
  const Shape &x = args.in[0].shape, &dw = args.out[0].shape;
  int64_t rows = 1;
  for (int i = 0; i < x.rank() - 1; ++i) rows *= x.dim(i);
  spec.transpose_a = true;
  spec.m = dw.dim(0);
  spec.n = dw.dim(1);
  spec.k = rows;
  spec.in = args.in[0].dtype;
  spec.out = args.out[0].dtype;
  spec.tf32 = args.attrs->GetBool("tf32");
  return spec;
}

// Which operand is where, by op.
enum class Order {
  kStraight,  // a, b(, bias) -> c(, aux)
  kSwapped,   // b, a -> c
  kAuxIn,     // a, b, aux -> c
};

struct OpState {
  std::shared_ptr<const void> product;
  Order order = Order::kStraight;
};

using SpecOf = ProductSpec (*)(const BindArgs& args);

template <SpecOf kSpec>
std::vector<std::string> CandidatesOf(const BindArgs& args) {
  const ProductSpec spec = kSpec(args);
  if (spec.m * spec.n * spec.k * spec.batch == 0) return {"default"};
  std::vector<std::string> ids = LtProduct::Candidates(spec);
  if (ids.empty()) ids.push_back("default");
  return ids;
}

template <SpecOf kSpec, Order kOrder>
Bound BindOp(const std::string& candidate, const BindArgs& args) {
  for (int i = 0; i < args.in_count; ++i) {
    if (!args.in[i].contiguous()) return {.error = "operands are not contiguous"};
  }
  Bound bound = BindProduct(kSpec(args), candidate);
  if (!bound.error.empty()) return bound;
  auto state = std::make_shared<OpState>();
  state->product = std::move(bound.state);
  state->order = kOrder;
  if (kOrder == Order::kSwapped && !args.attrs->GetBool("transpose_w")) {
    state->order = Order::kStraight;
  }
  bound.state = std::move(state);
  return bound;
}

int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const OpState*>(raw);
  cuda::ProductOperands o;
  const bool swapped = s.order == Order::kSwapped;
  o.a = args.in[swapped ? 1 : 0].data;
  o.b = args.in[swapped ? 0 : 1].data;
  o.c = args.out[0].data;
  if (s.order == Order::kAuxIn) {
    o.aux = args.in[2].data;
  } else {
    if (args.in_count > 2) o.bias = args.in[2].data;
    if (args.out_count > 1) o.aux = args.out[1].data;
  }
  return LaunchProduct(*static_cast<const ProductState*>(s.product.get()), o, args);
}

template <SpecOf kSpec, Order kOrder = Order::kStraight>
void Add(KernelTable* table, const char* op) {
  table->Add(op, DeviceKind::kCuda, {CandidatesOf<kSpec>, BindOp<kSpec, kOrder>, Launch, true});
}

}  // namespace

void RegisterMatmulCuda(KernelTable* table) {
  Add<MatmulSpec>(table, "matmul");
  Add<LinearSpecWith<Epilogue::kNone, Epilogue::kBias>>(table, "linear");
  Add<LinearSpecWith<Epilogue::kGelu, Epilogue::kBiasGelu>>(table, "linear_gelu");
  Add<GradWSpec, Order::kSwapped>(table, "linear_grad_w");
}

}  // namespace weft
