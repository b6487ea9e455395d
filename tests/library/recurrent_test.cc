// The core alone, without a daemon: a small recurrent net whose control flow depends on the data
// trains through the tape. Each sequence goes on until its own end mark is read, and at every step
// the sign of the hidden state chooses which recurrent matrix is used, so no two graphs need be
// alike.
//
// The task: a sum that leaks, faster while it is positive: s <- (s > 0 ? 0.5 : 0.8) s + 0.3 x.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/seeded.h"
#include "tests/support/status_matchers.h"
#include "worker/core/core.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 8;
constexpr float kEnd = 9;  // no input is as large
constexpr uint64_t kSeed = 11;

struct Sequence {
  std::vector<float> inputs;  // the last is kEnd
  float target = 0;
};

Sequence MakeSequence(testing::SeededStream& stream) {
  Sequence sequence;
  const int64_t length = 2 + stream.Below(7);
  double s = 0;
  for (int64_t t = 0; t < length; ++t) {
    const double x = stream.Uniform(-2, 2);
    s = (s > 0 ? 0.5 : 0.8) * s + 0.3 * x;
    sequence.inputs.push_back(static_cast<float>(x));
  }
  sequence.inputs.push_back(kEnd);
  sequence.target = static_cast<float>(s);
  return sequence;
}

// What control flow did: shows that it did depend on the data.
struct Seen {
  std::vector<int64_t> lengths = std::vector<int64_t>(16, 0);
  int64_t branches[2] = {};
};

class Net {
 public:
  explicit Net(EagerEmitter& e) : e_(e) {
    constexpr int64_t kCount = kHidden + 2 * kHidden * kHidden + kHidden + kHidden;
    params_ = e.Make<float>({kCount}, testing::SeededFloats(kSeed, kCount, -0.35, 0.35));
    EXPECT_OK(RequireGrad(params_));
  }

  // The squared error on one sequence.
  Tensor Loss(const Sequence& sequence, Seen* seen) {
    int64_t at = 0;
    const auto weight = [&](const Shape& shape) {
      const Attrs range{{"axis", int64_t{0}}, {"begin", at}, {"end", at + shape.elements()}};
      at += shape.elements();
      return Reshape(e_, e_.Emit("slice", {params_}, range), shape);
    };
    const Value w_in = weight({1, kHidden});
    const Value w_rec[2] = {weight({kHidden, kHidden}), weight({kHidden, kHidden})};
    const Value bias = weight({1, kHidden});
    const Value w_out = weight({kHidden, 1});
    const Tensor inputs =
        e_.Make<float>({static_cast<int64_t>(sequence.inputs.size())}, sequence.inputs);
    Value h = e_.Emit("fill", {}, {{"shape", std::vector<int64_t>{1, kHidden}}, {"value", 0.0}});
    for (int64_t t = 0;; ++t) {
      const Tensor x =
          e_.Run("slice", {inputs}, {{"axis", int64_t{0}}, {"begin", t}, {"end", t + 1}});
      if (!e_.status().ok()) return {};
      if (ToScalar(x).value() == kEnd) {
        ++seen->lengths[t];
        break;
      }
      const int branch = ToScalar(e_.Run("sum", {h})).value() > 0 ? 1 : 0;
      ++seen->branches[branch];
      const Value from_input = MatMul(e_, Reshape(e_, x, {1, 1}), w_in);
      const Value from_state = MatMul(e_, h, w_rec[branch]);
      h = e_.Emit("tanh", {Add(e_, Add(e_, from_input, from_state), bias)});
    }
    const Value error = e_.Emit("shift", {MatMul(e_, h, w_out)}, {{"amount", -sequence.target}});
    return e_.Run("sum", {Mul(e_, error, error)});
  }

  // One step of gradient descent on the mean over `batch`.
  double Step(const std::vector<Sequence>& batch, float rate, Seen* seen) {
    double total = 0;
    ClearGrad(params_);
    for (const Sequence& sequence : batch) {
      const Tensor loss = Loss(sequence, seen);
      const Status done = Backward(e_, loss);
      EXPECT_OK(done);
      if (!done.ok()) return total;
      total += ToScalar(loss).value();
    }
    const Tensor count = e_.Make<float>({}, {static_cast<float>(batch.size())});
    const Tensor lr = e_.Make<float>({}, {rate});
    e_.Run("sgd", {params_, GradOf(params_), count, lr}, {{"clamp", 1.0}});
    return total / static_cast<double>(batch.size());
  }

  double Evaluate(int count) {
    NoGradScope no_grad;
    testing::SeededStream stream(kSeed + 1);
    Seen seen;
    double total = 0;
    for (int i = 0; i < count; ++i) total += ToScalar(Loss(MakeSequence(stream), &seen)).value();
    return total / count;
  }

  const Tensor& params() const { return params_; }

 private:
  EagerEmitter& e_;
  Tensor params_;  // all weights in one leaf; each is a view of it
};

struct Outcome {
  double before = 0, after = 0;
  std::vector<float> params;
  Seen seen;
};

Outcome Train(int steps, int threads) {
  Outcome run;
  StatusOr<std::unique_ptr<Core>> core = Core::Open({.threads = threads, .seed = kSeed});
  EXPECT_OK(core);
  EagerEmitter& e = (*core)->emitter();
  Net net(e);
  testing::SeededStream stream(kSeed);
  run.before = net.Evaluate(100);
  for (int step = 0; step < steps; ++step) {
    std::vector<Sequence> batch;
    for (int i = 0; i < 8; ++i) batch.push_back(MakeSequence(stream));
    net.Step(batch, 0.2f, &run.seen);
  }
  run.after = net.Evaluate(100);
  EXPECT_OK(e.status());
  run.params = ToVector<float>(net.params()).value();
  return run;
}

TEST(RecurrentNet, DataDependentControlFlow_Trains) {
  const Outcome run = Train(500, 1);
  RecordProperty("before", std::to_string(run.before));
  RecordProperty("after", std::to_string(run.after));
  EXPECT_GT(run.before, 0.1);
  EXPECT_LT(run.after, 0.005);
  for (int64_t length = 2; length <= 8; ++length) EXPECT_GT(run.seen.lengths[length], 0) << length;
  EXPECT_GT(run.seen.branches[0], 1000);
  EXPECT_GT(run.seen.branches[1], 1000);
}

TEST(RecurrentNet, AgainAndOnTwoThreads_SameBits) {
  const Outcome first = Train(10, 1), again = Train(10, 1), threads = Train(10, 2);
  const size_t bytes = first.params.size() * sizeof(float);
  EXPECT_EQ(std::memcmp(first.params.data(), again.params.data(), bytes), 0);
  EXPECT_EQ(std::memcmp(first.params.data(), threads.params.data(), bytes), 0);
}

TEST(RecurrentNet, ManyStepsOfChangingGraphs_MemoryFlat) {
  StatusOr<std::unique_ptr<Core>> core = Core::Open({.seed = kSeed});
  ASSERT_OK(core);
  Net net((*core)->emitter());
  testing::SeededStream stream(kSeed);
  Seen seen;
  int64_t live = 0;
  for (int step = 0; step < 60; ++step) {
    net.Step({MakeSequence(stream)}, 0.1f, &seen);
    const AllocatorStats stats = (*core)->allocator().stats();
    if (step == 5) live = stats.live_blocks;
    if (step > 5) {
      EXPECT_EQ(stats.live_blocks, live);
    }
  }
  EXPECT_EQ((*core)->allocator().stats().segments, 1);
}

TEST(Core, BadOptions_Refused) {
  EXPECT_THAT(Core::Open({.threads = 0}),
              testing::IsStatus(absl::StatusCode::kInvalidArgument, "threads is 0"));
  EXPECT_THAT(Core::Open({.memory_cap_bytes = 0}),
              testing::IsStatus(absl::StatusCode::kInvalidArgument, "memory_cap_bytes is 0"));
}

TEST(Core, HeaderExample_Works) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Core> core, Core::Open({.threads = 2, .seed = 1}));
  EagerEmitter& e = core->emitter();
  const Tensor w = e.Make<float>({2, 2}, {1, 2, 3, 4});
  ASSERT_OK(RequireGrad(w));
  ASSERT_OK(Backward(e, e.Run("sum", {Mul(e, w, w)})));
  EXPECT_EQ(ToVector<float>(GradOf(w)).value(), (std::vector<float>{2, 4, 6, 8}));
}

}  // namespace
}  // namespace weft
