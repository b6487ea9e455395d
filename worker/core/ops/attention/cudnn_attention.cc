#ifdef WEFT_CUDA
#include "worker/core/ops/attention/cudnn_attention.h"

#ifdef WEFT_CUDNN_FRONTEND
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include <cudnn_frontend.h>

namespace weft::attention {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

// Names of operands in a plan.
enum Operand : int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv };

// One a process, like the context; it goes when the process does. Guarded by LibraryMutex, since
// its stream is set for each call.
cudnnHandle_t Handle() {
  static cudnnHandle_t const handle = [] {
    cudnnHandle_t made = nullptr;
    return cudnnCreate(&made) == CUDNN_STATUS_SUCCESS ? made : nullptr;
  }();
  return handle;
}
std::mutex& LibraryMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

// What a head's rows look like: [items, heads, time, width].
struct Layout {
  std::vector<int64_t> dims, strides;
};
Layout PackedLayout(const AttentionCall& c) {
  const int64_t row = int64_t{3} * c.heads * c.width;
  return {{c.items, c.heads, c.time, c.width}, {c.time * row, c.width, row, 1}};
}
Layout PlainLayout(const AttentionCall& c) {
  const int64_t row = int64_t{c.heads} * c.width;
  return {{c.items, c.heads, c.time, c.width}, {c.time * row, c.width, row, 1}};
}
Layout RowLayout(const AttentionCall& c) {
  return {{c.items, c.heads, c.time, 1}, {int64_t{c.heads} * c.time, c.time, 1, 1}};
}

TensorPointer Input(Graph& graph, Operand operand, const Layout& layout,
                    fe::DataType_t type = fe::DataType_t::BFLOAT16) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(operand)
                          .set_dim(layout.dims)
                          .set_stride(layout.strides)
                          .set_data_type(type));
}
void Output(const TensorPointer& tensor, Operand operand, const Layout& layout,
            fe::DataType_t type = fe::DataType_t::BFLOAT16) {
  tensor->set_output(true)
      .set_uid(operand)
      .set_dim(layout.dims)
      .set_stride(layout.strides)
      .set_data_type(type);
}

void DescribeForward(const AttentionCall& c, Graph& graph) {
  const TensorPointer q = Input(graph, kQ, PackedLayout(c)), k = Input(graph, kK, PackedLayout(c)),
                      v = Input(graph, kV, PackedLayout(c));
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.width));
  const auto [y, lse] = graph.sdpa(q, k, v,
                                   fe::graph::SDPA_attributes()
                                       .set_name("attention")
                                       .set_generate_stats(true)
                                       .set_causal_mask(c.causal)
                                       .set_attn_scale(scale));
  Output(y, kY, PlainLayout(c));
  Output(lse, kLse, RowLayout(c), fe::DataType_t::FLOAT);
}

void DescribeBackward(const AttentionCall& c, Graph& graph) {
  const TensorPointer q = Input(graph, kQ, PackedLayout(c)), k = Input(graph, kK, PackedLayout(c)),
                      v = Input(graph, kV, PackedLayout(c)), y = Input(graph, kY, PlainLayout(c)),
                      dy = Input(graph, kDy, PlainLayout(c)),
                      lse = Input(graph, kLse, RowLayout(c), fe::DataType_t::FLOAT);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.width));
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, y, dy, lse,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("attention_grad")
                                                    .set_causal_mask(c.causal)
                                                    .set_attn_scale(scale)
                                                    .set_deterministic_algorithm(true));
  Output(dq, kDq, PackedLayout(c));
  Output(dk, kDk, PackedLayout(c));
  Output(dv, kDv, PackedLayout(c));
}

bool Build(Graph& graph) {
  return graph.validate().is_good() && graph.build_operation_graph(Handle()).is_good() &&
         graph.create_execution_plans({fe::HeurMode_t::A}).is_good() &&
         graph.check_support(Handle()).is_good() && graph.build_plans(Handle()).is_good();
}

}  // namespace

struct CudnnAttention::Plan {
  Graph graph;
  bool backward = false;
};

CudnnAttention::CudnnAttention(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}
CudnnAttention::~CudnnAttention() = default;

std::shared_ptr<const CudnnAttention> CudnnAttention::Find(const AttentionCall& c, bool backward) {
  using Key = std::tuple<int64_t, int, int, int, bool, bool>;
  static auto* const known = new std::map<Key, std::shared_ptr<CudnnAttention>>;
  const std::lock_guard lock(LibraryMutex());
  const Key key = {c.items, c.time, c.heads, c.width, c.causal, backward};
  if (const auto at = known->find(key); at != known->end()) return at->second;
  std::shared_ptr<CudnnAttention>& made = (*known)[key];
  if (Handle() == nullptr) return nullptr;
  auto plan = std::make_unique<Plan>();
  plan->backward = backward;
  plan->graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  int64_t bytes = 0;
  try {
    if (backward) {
      DescribeBackward(c, plan->graph);
    } else {
      DescribeForward(c, plan->graph);
    }
    if (!Build(plan->graph) || !plan->graph.get_workspace_size(bytes).is_good()) return nullptr;
  } catch (const std::exception&) {
    return nullptr;  // as where there is no plan
  }
  made.reset(new CudnnAttention(std::move(plan)));
  made->workspace_bytes_ = bytes;
  return made;
}

int CudnnAttention::Launch(const AttentionCall& call, void* workspace, cudaStream_t stream) const {
  constexpr int64_t kElement = 2;
  const int64_t hidden = int64_t{call.heads} * call.width * kElement;
  char* const qkv = static_cast<char*>(const_cast<void*>(call.qkv));
  std::unordered_map<int64_t, void*> operands = {
      {kQ, qkv}, {kK, qkv + hidden}, {kV, qkv + 2 * hidden}, {kY, call.y}, {kLse, call.lse}};
  if (plan_->backward) {
    char* const dqkv = static_cast<char*>(call.dqkv);
    operands[kDy] = const_cast<void*>(call.dy);
    operands[kDq] = dqkv;
    operands[kDk] = dqkv + hidden;
    operands[kDv] = dqkv + 2 * hidden;
  }
  const std::lock_guard lock(LibraryMutex());
  if (cudnnSetStream(Handle(), stream) != CUDNN_STATUS_SUCCESS) {
    return static_cast<int>(cudaErrorUnknown);
  }
  const bool good = plan_->graph.execute(Handle(), operands, workspace).is_good();
  const cudaError_t error = cudaGetLastError();
  return static_cast<int>(good || error != cudaSuccess ? error : cudaErrorUnknown);
}

}  // namespace weft::attention

#else

namespace weft::attention {

struct CudnnAttention::Plan {};
CudnnAttention::CudnnAttention(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}
CudnnAttention::~CudnnAttention() = default;
std::shared_ptr<const CudnnAttention> CudnnAttention::Find(const AttentionCall&, bool) {
  return nullptr;
}
int CudnnAttention::Launch(const AttentionCall&, void*, cudaStream_t) const {
  return static_cast<int>(cudaErrorNotSupported);
}

}  // namespace weft::attention

#endif  // WEFT_CUDNN_FRONTEND

namespace weft::attention {

std::shared_ptr<const CudnnAttention> CudnnAttention::Forward(const AttentionCall& call) {
  return Find(call, false);
}
std::shared_ptr<const CudnnAttention> CudnnAttention::Backward(const AttentionCall& call) {
  return Find(call, true);
}

}  // namespace weft::attention

#endif  // WEFT_CUDA
