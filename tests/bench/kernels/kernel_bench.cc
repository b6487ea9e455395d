// Prints one table: the time of each CPU kernel at the shapes of a training step, on one and on two
// threads, products beside oneDNN's; and the sum of a whole step of the sequence reversal model.
// Nothing is asserted.
#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/opset/opset.h"
#include "worker/core/device/cpu_device.h"
#include "worker/core/dispatch/kernel_table.h"

// libgomp's, without its compiler flag.
extern "C" void omp_set_num_threads(int threads);

namespace weft {
namespace {

constexpr int64_t kRows = 1920;  // 30 sequences of 64

TensorMeta F32(const Shape& shape) { return {DType::kF32, shape}; }

struct Row {
  std::string op;
  std::vector<TensorMeta> in;
  Attrs attrs;
  int calls = 0;  // in one step of sequence reversal
};

std::vector<Row> StepRows() {
  const TensorMeta x = F32({kRows, 128}), wide = F32({kRows, 512}), qkv = F32({30, 64, 384});
  const TensorMeta y3 = F32({30, 64, 128}), lse = F32({30, 4, 64}), d = F32({128}),
                   stat = F32({kRows});
  const TensorMeta scalar = F32({}), flat = F32({402432}), step = {DType::kI64, {}};
  const TensorMeta targets = {DType::kI32, {kRows}};
  const Attrs back = {{"transpose_w", true}};
  const Attrs heads = {{"heads", int64_t{4}}, {"causal", true}, {"rotary_base", 10000.0}};
  std::vector<Row> rows;
  const struct {
    int64_t k, n;
    bool gelu;
  } layers[] = {{128, 384, false}, {128, 128, false}, {128, 512, true}, {512, 128, false}};
  for (const auto& l : layers) {
    const TensorMeta in = F32({kRows, l.k}), out = F32({kRows, l.n}), w = F32({l.k, l.n});
    rows.push_back({l.gelu ? "linear_gelu" : "linear", {in, w, F32({l.n})}, {}, 2});
    rows.push_back({"linear", {out, w}, back, 2});
    rows.push_back({"linear_grad_w", {in, out}, {}, 2});
    rows.push_back({"sum", {out}, {{"axes", std::vector<int64_t>{0}}}, 2});
  }
  rows.push_back({"gelu_grad", {wide, wide}, {}, 2});
  rows.push_back({"attention", {qkv}, heads, 2});
  rows.push_back({"attention_grad", {y3, qkv, y3, lse}, heads, 2});
  rows.push_back({"add_layer_norm", {x, x, d, d}, {}, 5});
  rows.push_back({"layer_norm_grad", {x, x, d, stat, stat, x}, {}, 5});
  rows.push_back({"add_rms_norm", {x, x, d}, {}, 0});
  rows.push_back({"rms_norm_grad", {x, x, d, stat, x}, {}, 0});
  rows.push_back({"linear_cross_entropy", {x, F32({128, 36}), targets}, {}, 1});
  rows.push_back({"linear_cross_entropy", {x, F32({128, 65}), targets}, {}, 0});
  rows.push_back({"cross_entropy", {F32({kRows, 36}), targets}, {}, 0});
  rows.push_back({"cross_entropy_grad", {F32({kRows, 36}), targets, stat, scalar}, {}, 0});
  rows.push_back({"grad_norm", {flat, scalar}, {}, 1});
  rows.push_back({"adamw", {flat, flat, flat, flat, scalar, scalar, step}, {}, 1});
  rows.push_back({"sgd", {flat, flat, scalar, scalar}, {}, 0});
  return rows;
}

std::vector<float> Draw(int64_t n) {
  std::vector<float> values(n);
  uint32_t seed = 12345;
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) + 0.01f;
  }
  return values;
}

struct Block {
  explicit Block(int64_t bytes)
      : data(::operator new (std::max<int64_t>(bytes, 64), std::align_val_t{64})) {}
  ~Block() { ::operator delete (data, std::align_val_t{64}); }
  Block(const Block&) = delete;
  void* data;
};

// A kernel bound to memory of its own.
class BoundKernel {
 public:
  BoundKernel(const Row& row, TileRunner* tiles)
      : kernel_(BuiltinKernels().Find(row.op, DeviceKind::kCpu)) {
    const OpDef* op = BuiltinOpSet().Find(row.op);
    if (op == nullptr || kernel_ == nullptr) return;
    const auto out = InferOp(*op, row.in, row.attrs);
    if (!out.ok()) {
      std::fprintf(stderr, "%s\n", out.status().ToString().c_str());
      std::exit(1);
    }
    for (const TensorMeta& m : row.in) in_.push_back(Allocate(m));
    for (size_t i = 0; i < out->size(); ++i) {
      out_.push_back(op->alias == Alias::kInPlace ? in_[i] : Allocate((*out)[i]));
    }
    for (const TensorMeta& m : row.in) bytes_ += m.bytes();
    for (const TensorMeta& m : *out) bytes_ += m.bytes();
    flops_ = FlopsOf(*op, row.in, *out, row.attrs);
    attrs_ = row.attrs;
    BindArgs bind;
    bind.in = in_.data();
    bind.in_count = static_cast<int>(in_.size());
    bind.out = out_.data();
    bind.out_count = static_cast<int>(out_.size());
    bind.attrs = &attrs_;
    bind.threads = tiles->threads();
    if (kernel_->bind != nullptr) bound_ = kernel_->bind("default", bind);
    blocks_.push_back(std::make_unique<Block>(bound_.scratch_bytes));
    args_.in = bind.in;
    args_.in_count = bind.in_count;
    args_.out = bind.out;
    args_.out_count = bind.out_count;
    args_.scratch = blocks_.back()->data;
    args_.tiles = tiles;
  }

  bool valid() const { return kernel_ != nullptr; }
  int64_t flops() const { return flops_; }
  int64_t bytes() const { return bytes_; }
  void Run() { kernel_->launch(bound_.state.get(), args_); }

 private:
  ArrayRef Allocate(const TensorMeta& m) {
    blocks_.push_back(std::make_unique<Block>(m.bytes()));
    ArrayRef ref = MakeArrayRef(blocks_.back()->data, m.dtype, m.shape);
    const std::vector<float> values = Draw(m.elements());
    for (int64_t i = 0; i < m.elements(); ++i) {
      if (m.dtype == DType::kF32) {
        ref.as<float>()[i] = values[i];
      } else if (m.dtype == DType::kI32) {
        ref.as<int32_t>()[i] = static_cast<int32_t>(values[i] * 36) % 36;
      } else {
        ref.as<int64_t>()[i] = 0;
      }
    }
    return ref;
  }

  const Kernel* kernel_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<ArrayRef> in_, out_;
  Attrs attrs_;
  Bound bound_;
  KernelArgs args_;
  int64_t flops_ = 0, bytes_ = 0;
};

// Milliseconds of the fastest of many calls.
template <typename Call>
double Measure(const Call& call) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  call();
  for (int i = 0; i < 40; ++i) {
    const auto start = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

// The same product by oneDNN, on one thread; 0 where the row is none.
double MeasureOneDnn(const Row& row) {
  if (row.op.compare(0, 6, "linear") != 0 || row.op == "linear_cross_entropy") return 0;
  const int64_t m = row.in[0].shape.dim(0), k = row.in[0].shape.dim(1);
  const bool grad = row.op == "linear_grad_w", back = row.attrs.GetBool("transpose_w");
  const int64_t n = row.in[1].shape.dim(back ? 0 : 1);
  // Random, as the kernels' operands: equal numbers would cost less power and so run faster.
  const std::vector<float> a = Draw(m * k), b = Draw(row.in[1].elements());
  std::vector<float> c(grad ? k * n : m * n);
  return Measure([&] {
    if (grad) {
      dnnl_sgemm('T', 'N', k, n, m, 1, a.data(), k, b.data(), n, 0, c.data(), n);
    } else {
      dnnl_sgemm('N', back ? 'T' : 'N', m, n, k, 1, a.data(), k, b.data(), back ? k : n, 0,
                 c.data(), n);
    }
  });
}

std::string Shapes(const Row& row) {
  std::string text;
  for (size_t i = 0; i < row.in.size() && i < 2; ++i)
    absl::StrAppend(&text, ToString(row.in[i].shape), " ");
  return text;
}

void PrintTable() {
  omp_set_num_threads(1);
  const auto one = MakeThreadPool(1), two = MakeThreadPool(2);
  std::printf("%s, %s\n", CpuModel().c_str(), CurrentInstructionSet().c_str());
  std::printf("%-22s %-26s %9s %9s %8s %8s %9s\n", "op", "shapes", "1 thr ms", "2 thr ms",
              "GFLOP/s", "GB/s", "oneDNN ms");
  double step_one = 0, step_two = 0;
  for (const Row& row : StepRows()) {
    BoundKernel alone(row, one.get()), shared(row, two.get());
    if (!alone.valid()) continue;
    const double ms = Measure([&] { alone.Run(); }), ms2 = Measure([&] { shared.Run(); });
    std::printf("%-22s %-26s %9.3f %9.3f %8.1f %8.1f %9.3f\n", row.op.c_str(), Shapes(row).c_str(),
                ms, ms2, static_cast<double>(alone.flops()) / ms / 1e6,
                static_cast<double>(alone.bytes()) / ms / 1e6, MeasureOneDnn(row));
    step_one += row.calls * ms;
    step_two += row.calls * ms2;
  }
  std::printf("sequence reversal, 30 sequences: %.2f ms on one thread, %.2f on two\n", step_one,
              step_two);
}

}  // namespace
}  // namespace weft

int main() {
  weft::PrintTable();
  return 0;
}
