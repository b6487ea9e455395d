// Times every candidate of the products that the reference workloads consist of, in a CUDA graph on
// random operands that are rotated so that the cache does not keep them, and prints a line a
// product: the fastest candidate, its time and rate, the default's time, and the row for
// product_table.h where one is worth having. Then the head with its loss, by the rows of a chunk.
//
//   products_bench [word ...]     only lines whose name or key contains one of the words
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "fabric/opset/opset.h"
#include "worker/core/device/device.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/core/ops/matmul/product.h"

namespace weft {
namespace {

using cuda::Product;
using cuda::ProductOperands;
using cuda::ProductSpec;
using Epilogue = ProductSpec::Epilogue;

// Better by less than this is not worth a row.
constexpr double kWorthwhile = 0.98;
constexpr int64_t kRandomBytes = int64_t{64} << 20;
// Of all sets of operands together: several times the second cache.
constexpr int64_t kRotatedBytes = int64_t{256} << 20;
constexpr int kMostSets = 20;

template <typename T>
T Must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}
void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// The device with random numbers on it.
class Bench {
 public:
  Bench() : device_(Must(MakeCudaDevice(0))), stream_(Must(device_->CreateStream())) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      std::vector<uint32_t> words(kRandomBytes / 4);
      uint64_t seed = 0x9e3779b97f4a7c15;
      for (uint32_t& word : words) word = Draw(dtype, &seed);
      void*& to = dtype == DType::kF32 ? wide_ : narrow_;
      to = Must(device_->Allocate(kRandomBytes));
      Must(device_->Copy(to, words.data(), kRandomBytes, stream_));
    }
    Must(device_->Synchronize(stream_));
    begin_ = Must(device_->CreateEvent());
    end_ = Must(device_->CreateEvent());
  }

  Device& device() { return *device_; }
  StreamTag stream() const { return stream_; }

  // Memory of random numbers; freed by FreeAll.
  void* Random(DType dtype, int64_t bytes) {
    char* const data = static_cast<char*>(Scratch(bytes));
    for (int64_t at = 0; at < bytes; at += kRandomBytes) {
      const int64_t part = std::min(kRandomBytes, bytes - at);
      Must(device_->Copy(data + at, dtype == DType::kBF16 ? narrow_ : wide_, part, stream_));
    }
    return data;
  }
  void* Scratch(int64_t bytes) {
    taken_.push_back(Must(device_->Allocate(std::max<int64_t>(bytes, 256))));
    return taken_.back();
  }
  void FreeAll() {
    Must(device_->Synchronize(stream_));
    for (void* data : taken_) device_->Free(data);
    taken_.clear();
  }

  // `launch(i)` for i in [0, launches), recorded. Its result is 0 or an error number.
  template <typename Launch>
  StatusOr<GraphTag> Record(int launches, const Launch& launch) {
    // Once outside: a library may load code at its first call.
    if (const int error = launch(0); error != 0) return Internal(device_->Describe(error));
    RETURN_IF_ERROR(device_->Synchronize(stream_));
    RETURN_IF_ERROR(device_->BeginCapture(stream_));
    int error = 0;
    for (int i = 0; i < launches && error == 0; ++i) error = launch(i);
    StatusOr<GraphTag> graph = device_->EndCapture(stream_);
    if (error != 0) return Internal(device_->Describe(error));
    return graph;
  }

  // Microseconds of one replay.
  double Replay(GraphTag graph) {
    Must(device_->Record(begin_, stream_));
    Must(device_->LaunchGraph(graph, stream_));
    Must(device_->Record(end_, stream_));
    Must(device_->Synchronize(stream_));
    return 1e3 * Must(device_->MillisecondsBetween(begin_, end_));
  }

 private:
  // Uniform in [-1, 1): two of them where they are narrow.
  static uint32_t Draw(DType dtype, uint64_t* seed) {
    const auto next = [seed] {
      *seed ^= *seed << 13;
      *seed ^= *seed >> 7;
      *seed ^= *seed << 17;
      const float x = static_cast<float>(*seed >> 40) / static_cast<float>(1 << 23) - 1;
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof(bits));
      return bits;
    };
    const uint32_t first = next();
    return dtype == DType::kF32 ? first : (first >> 16) | (next() & 0xffff0000);
  }

  std::unique_ptr<Device> device_;
  StreamTag stream_;
  EventTag begin_, end_;
  void* narrow_ = nullptr;
  void* wide_ = nullptr;
  std::vector<void*> taken_;
};

struct Timed {
  std::string candidate;
  GraphTag graph;
  double best = 0;  // microseconds a launch
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Quick times first; then the fastest few and the default (the first) in turns, medians of each.
std::vector<Timed> Race(Bench& bench, std::vector<Timed> all, int launches) {
  constexpr size_t kFinalists = 4;
  constexpr int kRounds = 5;
  for (Timed& t : all) {
    bench.Replay(t.graph);
    t.best = bench.Replay(t.graph) / launches;
  }
  std::sort(all.begin() + std::min<size_t>(1, all.size()), all.end(),
            [](const Timed& a, const Timed& b) { return a.best < b.best; });
  for (size_t i = kFinalists; i < all.size(); ++i) bench.device().DestroyGraph(all[i].graph);
  all.resize(std::min(all.size(), kFinalists));
  std::vector<std::vector<double>> times(all.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      times[i].push_back(bench.Replay(all[i].graph) / launches);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].best = Median(times[i]);
    bench.device().DestroyGraph(all[i].graph);
  }
  return all;
}

int64_t Bytes(int64_t elements, DType dtype) {
  return elements * static_cast<int64_t>(SizeOf(dtype));
}

std::vector<ProductOperands> Operands(Bench& bench, const ProductSpec& s, int sets) {
  std::vector<ProductOperands> all(static_cast<size_t>(sets));
  for (ProductOperands& o : all) {
    o.a = bench.Random(s.in, Bytes(s.m * s.k * s.batch, s.in));
    o.b = bench.Random(s.in, Bytes(s.k * s.n * s.batch, s.in));
    o.c = bench.Random(s.out, Bytes(s.m * s.n * s.batch, s.out));
    if (s.epilogue == Epilogue::kBias || s.epilogue == Epilogue::kBiasGelu) {
      o.bias = bench.Random(s.out, Bytes(s.n, s.out));
    }
    if (s.epilogue != Epilogue::kNone && s.epilogue != Epilogue::kBias) {
      o.aux = bench.Random(s.out, Bytes(s.m * s.n * s.batch, s.out));
    }
  }
  return all;
}

int SetsOf(const ProductSpec& s) {
  const int64_t one = Bytes(s.m * s.k + s.k * s.n, s.in) + Bytes(s.m * s.n, s.out);
  return static_cast<int>(std::clamp<int64_t>(kRotatedBytes / one, 2, kMostSets));
}

void TimeProduct(Bench& bench, const std::string& name, const ProductSpec& spec) {
  const double flops =
      2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) * static_cast<double>(spec.k);
  // About 10 ms a replay at most.
  const int launches = std::clamp(static_cast<int>(10e-3 / (flops / 400e12 + 2e-6)), 4, 20);
  const std::vector<ProductOperands> sets = Operands(bench, spec, SetsOf(spec));
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  std::vector<std::shared_ptr<const Product>> products;
  std::vector<std::string> ids;
  for (const std::string& id : Product::Candidates(spec)) {
    std::string error;
    auto product = id == "plain" ? nullptr : Product::Make(spec, id, &error);
    if (product == nullptr) continue;
    workspace_bytes = std::max(workspace_bytes, product->workspace_bytes());
    products.push_back(std::move(product));
    ids.push_back(id);
  }
  workspace = bench.Scratch(workspace_bytes);
  const auto stream = static_cast<cudaStream_t>(bench.stream().handle);
  std::vector<Timed> all;
  int refused = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    StatusOr<GraphTag> graph = bench.Record(launches, [&](int launch) {
      ProductOperands o = sets[static_cast<size_t>(launch) % sets.size()];
      o.workspace = workspace;
      return products[i]->Launch(o, stream);
    });
    if (graph.ok()) {
      all.push_back({ids[i], *graph});
    } else {
      ++refused;
    }
  }
  if (all.empty() || all[0].candidate != "default") {
    std::printf("%-22s %-44s no default\n", name.c_str(), Product::KeyOf(spec).c_str());
    bench.FreeAll();
    return;
  }
  const size_t count = all.size();
  all = Race(bench, std::move(all), launches);
  bench.FreeAll();
  const Timed& best = *std::min_element(
      all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.best < b.best; });
  std::printf("%-22s %-44s %8.2f us %6.1f TFLOP/s  default %8.2f us  of %zu, %d refused: %s\n",
              name.c_str(), Product::KeyOf(spec).c_str(), best.best, flops / best.best / 1e6,
              all[0].best, count, refused, best.candidate.c_str());
  if (best.best < kWorthwhile * all[0].best) {
    std::printf("    {\"%s\", \"%s\"},\n", Product::KeyOf(spec).c_str(), best.candidate.c_str());
  }
  std::fflush(stdout);
}

struct Model {
  const char* name;
  int64_t tokens, width;
  int64_t vocab;                     // 0: no head worth a row
  std::vector<int64_t> chunks = {};  // rows of the head's chunks
  bool bias = true;
  bool tf32 = true;
};

const Model kModels[] = {
    {"reversal", 4096, 128, 0},
    {"shakespeare", 8192, 256, 4096, {4096, 8192}},
    {"vit", 20480, 256, 0},
    {"minigpt", 16384, 384, 0},
    {"gpt2 b16", 16384, 768, 50304, {2048, 4096, 8192}, true, false},
    {"gpt2 b64", 65536, 768, 0, {}, true, false},
};

struct Named {
  std::string name;
  ProductSpec spec;
};

void AppendLayer(const Model& model, const char* layer, int64_t k, int64_t n, Epilogue epilogue,
                 ProductSpec types, std::vector<Named>* all) {
  const std::string name = absl::StrCat(model.name, " ", layer);
  ProductSpec forward = types;
  forward.m = model.tokens;
  forward.n = n;
  forward.k = k;
  forward.epilogue = epilogue;
  all->push_back({name, forward});
  // What follows gelu gives its gradient through it.
  ProductSpec back = types;
  back.m = model.tokens;
  back.n = k;
  back.k = n;
  back.transpose_b = true;
  back.epilogue = std::strcmp(layer, "down") == 0 ? Epilogue::kGeluGrad : Epilogue::kNone;
  all->push_back({name + " dx", back});
  ProductSpec weight = types;
  weight.m = k;
  weight.n = n;
  weight.k = model.tokens;
  weight.transpose_a = true;
  weight.out = DType::kF32;
  all->push_back({name + " dw", weight});
}

// The head's weight may be the table of embeddings, [vocab, width], or its own, [width, vocab].
void AppendHead(const Model& model, int64_t rows, bool stored_transposed, ProductSpec types,
                std::vector<Named>* all) {
  const std::string name = absl::StrCat(model.name, stored_transposed ? " tied" : " head");
  ProductSpec logits = types;
  logits.m = rows;
  logits.n = model.vocab;
  logits.k = model.width;
  logits.transpose_b = stored_transposed;
  all->push_back({name, logits});
  ProductSpec dx = types;
  dx.m = rows;
  dx.n = model.width;
  dx.k = model.vocab;
  dx.transpose_b = !stored_transposed;
  all->push_back({name + " dx", dx});
  ProductSpec dw = types;
  dw.m = stored_transposed ? model.vocab : model.width;
  dw.n = stored_transposed ? model.width : model.vocab;
  dw.k = rows;
  dw.transpose_a = true;
  dw.out = DType::kF32;
  all->push_back({name + " dw", dw});
  dw.accumulates = true;
  all->push_back({name + " dw more", dw});
}

std::vector<Named> Products() {
  std::vector<Named> all;
  for (const Model& model : kModels) {
    for (const bool tf32 : {false, true}) {
      if (tf32 && !model.tf32) continue;
      ProductSpec types;
      types.in = types.out = tf32 ? DType::kF32 : DType::kBF16;
      types.tf32 = tf32;
      const int64_t d = model.width;
      AppendLayer(model, "qkv", d, 3 * d, Epilogue::kBias, types, &all);
      AppendLayer(model, "out", d, d, Epilogue::kBias, types, &all);
      AppendLayer(model, "up", d, 4 * d, Epilogue::kBiasGelu, types, &all);
      AppendLayer(model, "down", 4 * d, d, Epilogue::kBias, types, &all);
      for (const int64_t rows : model.chunks) {
        for (const bool tied : {false, true}) AppendHead(model, rows, tied, types, &all);
      }
    }
  }
  return all;
}

// linear_cross_entropy as an op, with each chunk that it offers.
void TimeHead(Bench& bench, const std::string& name, int64_t rows, int64_t width, int64_t vocab) {
  const Kernel* kernel = BuiltinKernels().Find("linear_cross_entropy", DeviceKind::kCuda);
  const DType dtype = DType::kBF16;
  const Attrs attrs = {{"transpose_w", true}};
  std::vector<ArrayRef> in = {MakeArrayRef(nullptr, dtype, {rows, width}),
                              MakeArrayRef(nullptr, dtype, {vocab, width}),
                              MakeArrayRef(nullptr, DType::kI32, {rows})};
  std::vector<ArrayRef> out;
  for (int i = 0; i < 3; ++i) out.push_back(MakeArrayRef(nullptr, DType::kF32, {}));
  out.push_back(MakeArrayRef(nullptr, dtype, {rows, width}));
  out.push_back(MakeArrayRef(nullptr, DType::kF32, {vocab, width}));
  const BindArgs bind = {in.data(), 3, out.data(), 5, &attrs, 1};
  const std::vector<std::string> candidates = kernel->candidates(bind);
  std::vector<Bound> bound;
  int64_t scratch = 0;
  for (const std::string& id : candidates) {
    bound.push_back(kernel->bind(id, bind));
    scratch = std::max(scratch, bound.back().scratch_bytes);
  }
  std::vector<int32_t> targets(static_cast<size_t>(rows));
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(vocab));
  }
  for (ArrayRef* ref : {&in[0], &in[1], &out[3], &out[4]}) {
    ref->data = bench.Random(ref->dtype, Bytes(ref->elements(), ref->dtype));
  }
  in[2].data = bench.Scratch(rows * 4);
  Must(bench.device().Copy(in[2].data, targets.data(), rows * 4, bench.stream()));
  for (int i = 0; i < 3; ++i) out[static_cast<size_t>(i)].data = bench.Scratch(4);
  KernelArgs args;
  args.in = in.data();
  args.in_count = 3;
  args.out = out.data();
  args.out_count = 5;
  args.scratch = bench.Scratch(scratch);
  args.stream = bench.stream();
  const double flops = 6.0 * static_cast<double>(rows * width) * static_cast<double>(vocab);
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!bound[i].error.empty()) continue;
    constexpr int kLaunches = 4;
    const StatusOr<GraphTag> graph =
        bench.Record(kLaunches, [&](int) { return kernel->launch(bound[i].state.get(), args); });
    if (!graph.ok()) continue;
    bench.Replay(*graph);
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) times.push_back(bench.Replay(*graph) / kLaunches);
    bench.device().DestroyGraph(*graph);
    const double us = Median(times);
    std::printf("%-22s %-44s %8.2f us %6.1f TFLOP/s  scratch %.0f MiB\n", name.c_str(),
                candidates[i].c_str(), us, flops / us / 1e6,
                static_cast<double>(bound[i].scratch_bytes) / (1 << 20));
  }
  bench.FreeAll();
}

// Loss and its gradient alone: GB/s of the logits read once and, for the gradient, written.
void TimeLoss(Bench& bench, const char* op, int64_t rows, int64_t vocab) {
  const Kernel* kernel = BuiltinKernels().Find(op, DeviceKind::kCuda);
  const bool grad = std::strcmp(op, "cross_entropy_grad") == 0;
  const Attrs attrs;
  std::vector<ArrayRef> in = {MakeArrayRef(nullptr, DType::kBF16, {rows, vocab}),
                              MakeArrayRef(nullptr, DType::kI32, {rows})};
  std::vector<ArrayRef> out;
  if (grad) {
    in.push_back(MakeArrayRef(nullptr, DType::kF32, {rows}));
    in.push_back(MakeArrayRef(nullptr, DType::kF32, {}));
    out.push_back(in[0]);
  } else {
    for (int i = 0; i < 3; ++i) out.push_back(MakeArrayRef(nullptr, DType::kF32, {}));
    out.push_back(MakeArrayRef(nullptr, DType::kF32, {rows}));
  }
  const BindArgs bind = {
      in.data(), static_cast<int>(in.size()), out.data(), static_cast<int>(out.size()), &attrs, 1};
  const Bound bound = kernel->bind("default", bind);
  for (std::vector<ArrayRef>* list : {&in, &out}) {
    for (ArrayRef& ref : *list) {
      const int64_t bytes = Bytes(ref.elements(), ref.dtype);
      ref.data = ref.dtype == DType::kI32 ? bench.Scratch(bytes) : bench.Random(ref.dtype, bytes);
      if (ref.dtype == DType::kI32) Must(bench.device().Fill(ref.data, 0, bytes, bench.stream()));
    }
  }
  KernelArgs args;
  args.in = in.data();
  args.in_count = static_cast<int>(in.size());
  args.out = out.data();
  args.out_count = static_cast<int>(out.size());
  args.scratch = bench.Scratch(bound.scratch_bytes);
  args.stream = bench.stream();
  constexpr int kLaunches = 10;
  const GraphTag graph =
      Must(bench.Record(kLaunches, [&](int) { return kernel->launch(bound.state.get(), args); }));
  bench.Replay(graph);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) times.push_back(bench.Replay(graph) / kLaunches);
  bench.device().DestroyGraph(graph);
  const double us = Median(times);
  std::printf("%-22s %lldx%-38lld %8.2f us %6.0f GB/s\n", op, static_cast<long long>(rows),
              static_cast<long long>(vocab), us,
              static_cast<double>(Bytes(rows * vocab, DType::kBF16)) * (grad ? 2 : 1) / us / 1e3);
  bench.FreeAll();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;  // NOLINT: a program's main
  const auto wanted = [&](const std::string& text) {
    for (int i = 1; i < argc; ++i) {
      if (absl::StrContains(text, argv[i])) return true;
    }
    return argc == 1;
  };
  Bench bench;
  for (const Named& product : Products()) {
    const std::string key = cuda::Product::KeyOf(product.spec);
    if (wanted(absl::StrCat(product.name, " ", key))) {
      TimeProduct(bench, product.name, product.spec);
    }
  }
  if (wanted("head loss")) {
    TimeLoss(bench, "cross_entropy", 8192, 50304);
    TimeLoss(bench, "cross_entropy_grad", 8192, 50304);
    TimeLoss(bench, "cross_entropy", 8192, 4096);
    TimeHead(bench, "shakespeare loss", 8192, 256, 4096);
    TimeHead(bench, "gpt2 b16 loss", 16384, 768, 50304);
    TimeHead(bench, "gpt2 b64 loss", 65536, 768, 50304);
  }
  return 0;
}
