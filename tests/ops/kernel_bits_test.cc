// What the promise of equal bits asks of products and attention: a row does not depend on its
// neighbours, on where operands lie, or on threads.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/core/device/cpu_device.h"
#include "worker/core/dispatch/kernel_table.h"

namespace weft {
namespace {

std::vector<float> Draw(int64_t n, uint32_t seed) {
  std::vector<float> values(n);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return values;
}

struct KernelCall {
  std::string op;
  std::vector<Shape> in;   // f32
  std::vector<Shape> out;  // f32
  Attrs attrs;
  int threads = 1;
  int shift = 0;  // floats between a 64-byte boundary and each operand
};

// Draws of an operand go in order, so a run with fewer rows sees the same first rows.
std::vector<std::vector<float>> Results(const KernelCall& run) {
  std::vector<std::vector<float>> memory;
  std::vector<ArrayRef> in, out;
  const auto place = [&](const Shape& shape, const std::vector<float>& values) {
    memory.emplace_back(shape.elements() + 64);
    float* start = memory.back().data();
    start += (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64 / sizeof(float) + run.shift;
    std::copy(values.begin(), values.end(), start);
    return MakeArrayRef(start, DType::kF32, shape);
  };
  memory.reserve(16);
  for (size_t i = 0; i < run.in.size(); ++i) {
    in.push_back(place(run.in[i], Draw(run.in[i].elements(), static_cast<uint32_t>(i + 1))));
  }
  for (const Shape& shape : run.out) out.push_back(place(shape, {}));
  BindArgs bind;
  bind.in = in.data();
  bind.in_count = static_cast<int>(in.size());
  bind.out = out.data();
  bind.out_count = static_cast<int>(out.size());
  bind.attrs = &run.attrs;
  bind.threads = run.threads;
  const Kernel* kernel = BuiltinKernels().Find(run.op, DeviceKind::kCpu);
  const Bound bound = kernel->bind("default", bind);
  const std::unique_ptr<TileRunner> tiles = MakeThreadPool(run.threads);
  std::vector<float> scratch(bound.scratch_bytes / sizeof(float) + 32);
  KernelArgs args;
  args.in = in.data();
  args.in_count = bind.in_count;
  args.out = out.data();
  args.out_count = bind.out_count;
  args.scratch =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  args.tiles = tiles.get();
  kernel->launch(bound.state.get(), args);
  std::vector<std::vector<float>> results;
  for (const ArrayRef& ref : out) {
    results.emplace_back(ref.as<float>(), ref.as<float>() + ref.elements());
  }
  return results;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b, size_t count,
                    const std::string& what) {
  ASSERT_GE(a.size(), count);
  ASSERT_GE(b.size(), count);
  EXPECT_EQ(std::memcmp(a.data(), b.data(), count * sizeof(float)), 0) << what;
}

TEST(Linear, RowsWithFewerOrMoreNeighbours_SameBits) {
  for (const char* op : {"linear", "linear_gelu"}) {
    for (const auto& [k, n] :
         {std::pair<int64_t, int64_t>{128, 384}, {37, 36}, {5, 65}, {300, 7}}) {
      for (const bool transposed : {false, true}) {
        const Shape w = transposed ? Shape{n, k} : Shape{k, n};
        const auto run = [&](int64_t m) {
          std::vector<Shape> out = {{m, n}};
          if (std::string(op) == "linear_gelu") out.push_back({m, n});
          return Results({op, {{m, k}, w, {n}}, out, {{"transpose_w", transposed}}});
        };
        const auto many = run(301);
        for (const int64_t m : {1, 2, 3, 7, 8, 9, 31, 127, 129, 300}) {
          ExpectSameBits(run(m)[0], many[0], m * n, op + std::to_string(m));
        }
      }
    }
  }
}

TEST(Attention, SequencesAloneOrTogether_SameBits) {
  const Attrs attrs = {{"heads", int64_t{2}}, {"causal", true}, {"rotary_base", 10000.0}};
  const auto run = [&](int64_t b) {
    return Results({"attention", {{b, 70, 48}}, {{b, 70, 16}, {b, 2, 70}}, attrs});
  };
  const auto many = run(5);
  for (const int64_t b : {1, 2, 4}) ExpectSameBits(run(b)[0], many[0], b * 70 * 16, "batch");
}

TEST(Attention, CausalRowsBeforeFewerOrMoreOthers_SameBits) {
  const Attrs attrs = {{"heads", int64_t{1}}, {"causal", true}, {"rotary_base", 10000.0}};
  const auto run = [&](int64_t t) {
    return Results({"attention", {{1, t, 24}}, {{1, t, 8}, {1, 1, t}}, attrs});
  };
  const auto many = run(150);
  for (const int64_t t : {1, 9, 33, 64, 65, 149}) ExpectSameBits(run(t)[0], many[0], t * 8, "time");
}

std::vector<KernelCall> AllKinds() {
  const Attrs heads = {{"heads", int64_t{3}}, {"causal", true}, {"rotary_base", 10000.0}};
  const Attrs whole = {{"heads", int64_t{3}}, {"causal", false}, {"rotary_base", 0.0}};
  return {
      {"linear", {{200, 37}, {37, 70}, {70}}, {{200, 70}}, {}},
      {"linear", {{200, 37}, {70, 37}}, {{200, 70}}, {{"transpose_w", true}}},
      {"linear_gelu", {{200, 37}, {37, 70}, {70}}, {{200, 70}, {200, 70}}, {}},
      {"linear_grad_w", {{600, 140}, {600, 150}}, {{140, 150}}, {}},
      {"matmul",
       {{3, 37, 140}, {3, 150, 37}},
       {{3, 140, 150}},
       {{"transpose_a", true}, {"transpose_b", true}}},
      {"attention", {{2, 70, 54}}, {{2, 70, 18}, {2, 3, 70}}, heads},
      {"attention_grad", {{2, 70, 18}, {2, 70, 54}, {2, 70, 18}, {2, 3, 70}}, {{2, 70, 54}}, heads},
      {"attention_grad", {{2, 70, 18}, {2, 70, 54}, {2, 70, 18}, {2, 3, 70}}, {{2, 70, 54}}, whole},
      {"rotary", {{2, 70, 54}}, {{2, 70, 54}}, {{"heads", int64_t{3}}, {"base", 10000.0}}},
      {"layer_norm", {{200, 37}, {37}, {37}}, {{200, 37}, {200}, {200}}, {}},
      {"layer_norm_grad",
       {{200, 37}, {200, 37}, {37}, {200}, {200}, {200, 37}},
       {{200, 37}, {37}, {37}},
       {}},
  };
}

TEST(Kernels, OnOneOrMoreThreads_SameBits) {
  for (const KernelCall& one : AllKinds()) {
    KernelCall three = one;
    three.threads = 3;
    const auto a = Results(one), b = Results(three);
    for (size_t i = 0; i < a.size(); ++i) ExpectSameBits(a[i], b[i], a[i].size(), one.op);
  }
}

TEST(Kernels, OnOperandsMovedInMemory_SameBits) {
  for (const KernelCall& aligned : AllKinds()) {
    const auto a = Results(aligned);
    for (const int shift : {1, 3, 8}) {
      KernelCall moved = aligned;
      moved.shift = shift;
      const auto b = Results(moved);
      for (size_t i = 0; i < a.size(); ++i) ExpectSameBits(a[i], b[i], a[i].size(), aligned.op);
    }
  }
}

}  // namespace
}  // namespace weft
