// Times attention and its gradient, each way that the kernel table offers, in a CUDA graph on
// random operands that are rotated so that the cache does not keep them. A line a way:
// microseconds, rate (a causal mask counted as half), bytes that must move a second, and how far
// the results are from the general way's.
//
//   attention_bench [word ...]     only lines whose text contains one of the words
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "worker/core/device/device.h"
#include "worker/core/dispatch/kernel_table.h"

namespace weft {
namespace {

// Of all sets of operands together: several times the second cache.
constexpr int64_t kRotatedBytes = int64_t{256} << 20;
constexpr int64_t kMostSets = 20;
constexpr int kRounds = 7;
constexpr double kBase = 10000;

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

struct Shapes {
  int64_t items, heads, time, width;
  bool causal;
  double rotary_base = 0;
  DType dtype = DType::kBF16;
  bool tf32 = false;

  std::string Name() const {
    return absl::StrFormat("%dx%d T %d D %d %s%s %s", items, heads, time, width,
                           causal ? "causal" : "full", rotary_base == 0 ? "" : " rotary",
                           dtype == DType::kBF16 ? "bf16" : (tf32 ? "tf32" : "f32"));
  }
  // Two products forward.
  double flops() const {
    const double all = 4.0 * static_cast<double>(items * heads) * static_cast<double>(time) *
                       static_cast<double>(time) * static_cast<double>(width);
    return causal ? all / 2 : all;
  }
  // Of one [items, time, heads * width].
  int64_t bytes() const {
    return items * time * heads * width * static_cast<int64_t>(SizeOf(dtype));
  }
  Attrs attrs() const {
    return {{"heads", heads}, {"causal", causal}, {"rotary_base", rotary_base}, {"tf32", tf32}};
  }
};

// One set of operands: of both ops.
struct Operands {
  ArrayRef qkv, y, lse, dy, dqkv;
};

class Bench {
 public:
  Bench()
      : device_(Must(MakeCudaDevice(0))),
        stream_(Must(device_->CreateStream())),
        begin_(Must(device_->CreateEvent())),
        end_(Must(device_->CreateEvent())) {}

  void Time(const Shapes& shapes) {
    const int64_t set_bytes = 8 * shapes.bytes();
    const int64_t sets = std::clamp<int64_t>(kRotatedBytes / set_bytes, 2, kMostSets);
    std::vector<Operands> operands;
    for (int64_t i = 0; i < sets; ++i) operands.push_back(MakeOperands(shapes));
    TimeOp("attention", shapes, operands, shapes.flops(), 4 * shapes.bytes());
    TimeOp("attention_grad", shapes, operands, 2.5 * shapes.flops(), 8 * shapes.bytes());
    Must(device_->Synchronize(stream_));
    for (void* data : taken_) device_->Free(data);
    taken_.clear();
  }

 private:
  void* Take(int64_t bytes) {
    taken_.push_back(Must(device_->Allocate(std::max<int64_t>(bytes, 256))));
    return taken_.back();
  }

  ArrayRef Random(DType dtype, const Shape& shape) {
    ArrayRef ref = MakeArrayRef(nullptr, dtype, shape);
    const int64_t bytes = ref.elements() * static_cast<int64_t>(SizeOf(dtype));
    std::vector<char> host(static_cast<size_t>(bytes));
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(SizeOf(dtype))) {
      seed_ ^= seed_ << 13;
      seed_ ^= seed_ >> 7;
      seed_ ^= seed_ << 17;
      const float x = static_cast<float>(seed_ >> 40) / static_cast<float>(1 << 23) - 1;
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof(bits));
      if (dtype == DType::kBF16) bits >>= 16;
      std::memcpy(host.data() + at, &bits, SizeOf(dtype));
    }
    ref.data = Take(bytes);
    Must(device_->Copy(ref.data, host.data(), bytes, stream_));
    Must(device_->Synchronize(stream_));
    return ref;
  }

  Operands MakeOperands(const Shapes& s) {
    const Shape wide = {s.items, s.time, 3 * s.heads * s.width};
    const Shape plain = {s.items, s.time, s.heads * s.width};
    return {Random(s.dtype, wide), Random(s.dtype, plain),
            Random(DType::kF32, {s.items, s.heads, s.time}), Random(s.dtype, plain),
            Random(s.dtype, wide)};
  }

  static void Arrange(const std::string& op, const Operands& o, std::vector<ArrayRef>* in,
                      std::vector<ArrayRef>* out) {
    if (op == "attention") {
      *in = {o.qkv};
      *out = {o.y, o.lse};
    } else {
      *in = {o.dy, o.qkv, o.y, o.lse};
      *out = {o.dqkv};
    }
  }

  int Launch(const Kernel& kernel, const std::string& op, const Bound& bound, const Operands& o,
             void* scratch) {
    std::vector<ArrayRef> in, out;
    Arrange(op, o, &in, &out);
    KernelArgs args;
    args.in = in.data();
    args.in_count = static_cast<int>(in.size());
    args.out = out.data();
    args.out_count = static_cast<int>(out.size());
    args.scratch = scratch;
    args.stream = stream_;
    return kernel.launch(bound.state.get(), args);
  }

  std::vector<double> Read(const ArrayRef& ref) {
    const size_t count = static_cast<size_t>(ref.elements()), size = SizeOf(ref.dtype);
    std::vector<char> host(count * size);
    Must(device_->Copy(host.data(), ref.data, static_cast<int64_t>(host.size()), stream_));
    Must(device_->Synchronize(stream_));
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, host.data() + i * size, size);
      if (size == 2) bits <<= 16;
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      values[i] = x;
    }
    return values;
  }

  // ||a - b|| / ||b||
  static double Distance(const std::vector<double>& a, const std::vector<double>& b) {
    double off = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      off += (a[i] - b[i]) * (a[i] - b[i]);
      all += b[i] * b[i];
    }
    return std::sqrt(off / all);
  }

  void TimeOp(const std::string& op, const Shapes& shapes, const std::vector<Operands>& operands,
              double flops, int64_t bytes) {
    const Kernel& kernel = *BuiltinKernels().Find(op, DeviceKind::kCuda);
    const Attrs attrs = shapes.attrs();
    std::vector<ArrayRef> in, out;
    Arrange(op, operands[0], &in, &out);
    const BindArgs bind = {in.data(),  static_cast<int>(in.size()),
                           out.data(), static_cast<int>(out.size()),
                           &attrs,     1};
    std::vector<std::string> ways = kernel.candidates(bind);
    // The general way, which is the last one, first: to compare with.
    std::rotate(ways.begin(), ways.end() - 1, ways.end());
    std::vector<double> want;
    for (const std::string& way : ways) {
      const Bound bound = kernel.bind(way, bind);
      if (!bound.error.empty()) {
        std::printf("%s %s: %s\n", op.c_str(), way.c_str(), bound.error.c_str());
        continue;
      }
      void* const scratch = Take(bound.scratch_bytes);
      if (const int error = Launch(kernel, op, bound, operands[0], scratch); error != 0) {
        std::printf("%s %s: %s\n", op.c_str(), way.c_str(), device_->Describe(error).c_str());
        continue;
      }
      const std::vector<double> got = Read(out[0]);
      if (want.empty()) want = got;
      const double us = MedianTime(way == ways[0] ? 1 : 2, operands, [&](const Operands& o) {
        return Launch(kernel, op, bound, o, scratch);
      });
      std::printf("%-14s %-34s %-9s %9.2f us %7.1f TFLOP/s %7.0f GB/s   off %.1e\n", op.c_str(),
                  shapes.Name().c_str(), way.c_str(), us, flops / us / 1e6,
                  static_cast<double>(bytes) / us / 1e3, Distance(got, want));
      std::fflush(stdout);
    }
  }

  // Microseconds a launch, of replays of a graph that goes over all sets `times` times.
  template <typename Body>
  double MedianTime(int times, const std::vector<Operands>& operands, const Body& body) {
    Must(device_->BeginCapture(stream_));
    int error = 0;
    for (int i = 0; i < times; ++i) {
      for (const Operands& o : operands) error = error != 0 ? error : body(o);
    }
    const GraphTag graph = Must(device_->EndCapture(stream_));
    if (error != 0) Must(Internal(device_->Describe(error)));
    std::vector<double> us;
    for (int round = 0; round <= kRounds; ++round) {
      Must(device_->Record(begin_, stream_));
      Must(device_->LaunchGraph(graph, stream_));
      Must(device_->Record(end_, stream_));
      Must(device_->Synchronize(stream_));
      if (round == 0) continue;
      us.push_back(1e3 * Must(device_->MillisecondsBetween(begin_, end_)) /
                   static_cast<double>(operands.size() * static_cast<size_t>(times)));
    }
    device_->DestroyGraph(graph);
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }

  std::unique_ptr<Device> device_;
  StreamTag stream_;
  EventTag begin_, end_;
  std::vector<void*> taken_;
  uint64_t seed_ = 0x9e3779b97f4a7c15;
};

std::vector<Shapes> AllShapes() {
  // The reference workloads and PyTorch's cases (kernel_peers.py).
  std::vector<Shapes> all = {{64, 4, 64, 32, true, kBase}, {64, 8, 128, 32, true, kBase},
                             {256, 8, 80, 32, false},      {64, 6, 256, 64, true},
                             {16, 12, 1024, 64, true},     {64, 12, 1024, 64, true},
                             {8, 16, 4096, 128, true},     {64, 4, 64, 32, true},
                             {64, 8, 128, 32, true},       {16, 12, 1024, 64, true, kBase}};
  constexpr int64_t kTokens = 16384, kHidden = 384;
  for (const int64_t width : {32, 64}) {
    for (const int64_t time : {64, 80, 128, 256, 1024, 2048}) {
      for (const bool causal : {true, false}) {
        all.push_back({kTokens / time, kHidden / width, time, width, causal});
      }
    }
  }
  for (const bool tf32 : {true, false}) {
    all.push_back({64, 4, 64, 32, true, kBase, DType::kF32, tf32});
    all.push_back({64, 8, 128, 32, true, kBase, DType::kF32, tf32});
    all.push_back({256, 8, 80, 32, false, 0, DType::kF32, tf32});
    all.push_back({64, 6, 256, 64, true, 0, DType::kF32, tf32});
    all.push_back({16, 12, 1024, 64, true, 0, DType::kF32, tf32});
  }
  return all;
}

int Main(int argc, char** argv) {
  Bench bench;
  for (const Shapes& shapes : AllShapes()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) {
      wanted = wanted || absl::StrContains(shapes.Name(), argv[i]);
    }
    if (wanted) bench.Time(shapes);
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
