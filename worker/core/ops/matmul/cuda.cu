// The family's ops on CUDA as products of row-major matrices.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/cuda_kernel.cuh"
#include "worker/core/ops/families.h"
#include "worker/core/ops/matmul/product.h"

namespace weft {
namespace {

using cuda::Product;
using cuda::ProductSpec;
using Epilogue = ProductSpec::Epilogue;

// Of all dimensions but the last `kept`.
int64_t LeadingElements(const Shape& shape, int kept) {
  int64_t elements = 1;
  for (int i = 0; i < shape.rank() - kept; ++i) elements *= shape.dim(i);
  return elements;
}

ProductSpec TypesOf(const BindArgs& args) {
  ProductSpec spec;
  spec.in = args.in[0].dtype;
  spec.out = args.out[0].dtype;
  spec.tf32 = args.attrs->GetBool("tf32");
  return spec;
}

// a, b -> y.
ProductSpec MatmulSpec(const BindArgs& args) {
  const Shape &a = args.in[0].shape, &b = args.in[1].shape, &y = args.out[0].shape;
  ProductSpec spec = TypesOf(args);
  spec.transpose_a = args.attrs->GetBool("transpose_a");
  spec.transpose_b = args.attrs->GetBool("transpose_b");
  spec.m = y.dim(-2);
  spec.n = y.dim(-1);
  spec.k = a.dim(spec.transpose_a ? -2 : -1);
  const int64_t batch = LeadingElements(a, 2);
  spec.shared_b = b.rank() < a.rank();
  if (spec.shared_b && !spec.transpose_a) {
    spec.m *= batch;  // rows of all batches lie one after the other
    spec.shared_b = false;
  } else {
    spec.batch = batch;
  }
  return spec;
}

// x, w, ... -> y.
ProductSpec LinearSpec(const BindArgs& args) {
  ProductSpec spec = TypesOf(args);
  spec.transpose_b = args.attrs->GetBool("transpose_w");
  spec.m = LeadingElements(args.in[0].shape, 1);
  spec.n = args.out[0].shape.dim(-1);
  spec.k = args.in[0].shape.dim(-1);
  return spec;
}

// The third operand is a bias, where there is one.
template <Epilogue kPlain, Epilogue kWithBias>
ProductSpec LinearSpecWith(const BindArgs& args) {
  ProductSpec spec = LinearSpec(args);
  spec.epilogue = args.in_count > 2 ? kWithBias : kPlain;
  return spec;
}

ProductSpec GradGeluSpec(const BindArgs& args) {
  ProductSpec spec = LinearSpec(args);
  spec.epilogue = Epilogue::kGeluGrad;
  return spec;
}

ProductSpec GradGeluBiasSpec(const BindArgs& args) {
  ProductSpec spec = GradGeluSpec(args);
  spec.sums_columns = true;
  return spec;
}

// x, dy -> dw = x' dy, or dy' x where w is stored transposed.
ProductSpec GradWSpec(const BindArgs& args) {
  ProductSpec spec = TypesOf(args);
  spec.transpose_a = true;
  spec.m = args.out[0].shape.dim(0);
  spec.n = args.out[0].shape.dim(1);
  spec.k = LeadingElements(args.in[0].shape, 1);
  return spec;
}

// Where the operands of the op go.
enum class Role {
  kForward,   // a, b, bias? -> c, aux?
  kGradGelu,  // a, b, aux -> c, sums?
  kGradW,     // a, b -> c, the first two swapped where w is stored transposed
};

struct OpState {
  std::shared_ptr<const Product> product;
  Role role = Role::kForward;
  bool swapped = false;
};

using SpecOf = ProductSpec (*)(const BindArgs& args);

template <SpecOf kSpec>
std::vector<std::string> CandidatesOf(const BindArgs& args) {
  return Product::Candidates(kSpec(args));
}

template <SpecOf kSpec, Role kRole>
Bound BindOp(const std::string& candidate, const BindArgs& args) {
  auto state = std::make_shared<OpState>();
  std::string error;
  state->product = Product::Make(kSpec(args), candidate, &error);
  if (state->product == nullptr) return {.error = error};
  state->role = kRole;
  state->swapped = kRole == Role::kGradW && args.attrs->GetBool("transpose_w");
  Bound bound;
  bound.scratch_bytes = state->product->workspace_bytes();
  bound.state = std::move(state);
  return bound;
}

int Launch(const void* raw, const KernelArgs& args) {
  const auto& s = *static_cast<const OpState*>(raw);
  cuda::ProductOperands o;
  o.a = args.in[s.swapped ? 1 : 0].data;
  o.b = args.in[s.swapped ? 0 : 1].data;
  o.c = args.out[0].data;
  o.workspace = args.scratch;
  if (s.role == Role::kGradGelu) {
    o.aux = args.in[2].data;
    if (args.out_count > 1) o.sums = args.out[1].as<float>();
  } else {
    if (args.in_count > 2) o.bias = args.in[2].data;
    if (args.out_count > 1) o.aux = args.out[1].data;
  }
  return s.product->Launch(o, cuda::StreamOf(args));
}

template <SpecOf kSpec>
void Add(KernelTable* table, const char* op) {
  table->Add(op, DeviceKind::kCuda,
             {CandidatesOf<kSpec>, BindOp<kSpec, Role::kForward>, Launch, true});
}

}  // namespace

void RegisterMatmulCuda(KernelTable* table) {
  Add<MatmulSpec>(table, "matmul");
  Add<LinearSpecWith<Epilogue::kNone, Epilogue::kBias>>(table, "linear");
  Add<LinearSpecWith<Epilogue::kGelu, Epilogue::kBiasGelu>>(table, "linear_gelu");
  table->Add("linear_grad_gelu", DeviceKind::kCuda,
             {CandidatesOf<GradGeluSpec>, BindOp<GradGeluSpec, Role::kGradGelu>, Launch, true});
  table->Add(
      "linear_grad_gelu_bias", DeviceKind::kCuda,
      {CandidatesOf<GradGeluBiasSpec>, BindOp<GradGeluBiasSpec, Role::kGradGelu>, Launch, true});
  table->Add("linear_grad_w", DeviceKind::kCuda,
             {CandidatesOf<GradWSpec>, BindOp<GradWSpec, Role::kGradW>, Launch, true});
}

}  // namespace weft
