#include "worker/exec/step_trace.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/fake_clock.h"

namespace weft {
namespace {

using nlohmann::json;

// One op, of 2 FLOPs an element of its result.
const OpSet& Ops() {
  static const OpSet* const ops = [] {
    auto* set = new OpSet;
    OpDef def;
    def.name = "twice";
    def.inputs = {"x"};
    def.infer = [](const InferArgs& args) -> StatusOr<std::vector<TensorMeta>> { return args.in; };
    def.flops = [](const CostArgs& args) { return 2 * args.out[0].elements(); };
    set->Add(std::move(def));
    return set;
  }();
  return *ops;
}

Call Twice(const std::string& node, int64_t elements, DType dtype = DType::kF32) {
  Call call;
  call.op = "twice";
  call.node = node;
  call.kernel = "default";
  const TensorMeta meta{dtype, {elements}};
  call.in = {{Space::kArena, 0, 0, meta, ContiguousStrides(meta.shape)}};
  call.out = call.in;
  return call;
}

class StepTraceTest : public ::testing::Test {
 protected:
  StepTrace Make(bool on_cpu) {
    TracedRank rank;
    rank.job = "first";
    rank.rank = 2;
    rank.device = on_cpu ? "cpu" : "GPU";
    rank.on_cpu = on_cpu;
    if (!on_cpu) rank.ceilings = {.memory_bytes = 1e12, .fp32_flops = 1e12, .bf16_flops = 4e12};
    return StepTrace(rank, {}, &Ops(), &clock_);
  }
  void RunFor(StepTrace& trace, int32_t label, int64_t us) {
    const absl::Duration begin = trace.Now();
    clock_.Advance(absl::Microseconds(us));
    trace.Ran(label, StreamTag{}, begin);
  }
  DeviceActivity Activity(const std::string& name, int64_t begin_us, int64_t us, int32_t label) {
    DeviceActivity a;
    a.name = name;
    a.begin = absl::Microseconds(begin_us);
    a.end = a.begin + absl::Microseconds(us);
    a.stream = 7;
    a.label = label;
    return a;
  }
  static std::vector<json> Events(const StepTrace& trace, const char* category) {
    std::vector<json> found;
    const json file = json::parse(trace.TraceJson());
    for (const json& event : file["traceEvents"]) {
      if (event.value("cat", "") == category) found.push_back(event);
    }
    return found;
  }

  testing::FakeClock clock_;
};

TEST_F(StepTraceTest, Window_FitsTheRun) {
  struct Row {
    int64_t first, end, begin, after;
  };
  const ProfileSettings settings{.steps = 5, .after = 3, .folder = ""};
  for (const Row& row : {Row{0, 100, 3, 8},
                         {10, 100, 13, 18},
                         {0, 7, 2, 7},
                         {0, 5, 0, 5},
                         {0, 2, 0, 2},
                         {4, 4, 4, 4}}) {
    const StepTrace::Window window = StepTrace::WindowOf(settings, row.first, row.end);
    EXPECT_EQ(window.begin, row.begin) << row.first << " to " << row.end;
    EXPECT_EQ(window.end, row.after) << row.first << " to " << row.end;
  }
}

TEST_F(StepTraceTest, CpuCalls_OutsideTheWindow_AreNotKept) {
  StepTrace trace = Make(true);
  const int32_t label = trace.AddCall("train", Twice("a", 100));
  RunFor(trace, label, 5);
  trace.Start(3);
  RunFor(trace, label, 5);
  trace.Confirmed();
  trace.Stop(4);
  RunFor(trace, label, 5);
  trace.HostSpan("submit", trace.Now());
  trace.HostSpan("checkpoint", trace.Now(), StepTrace::Keep::kAlways);
  const auto kernels = Events(trace, "kernel");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0]["name"], "a (twice)");
  EXPECT_EQ(kernels[0]["pid"], 2);
  EXPECT_EQ(kernels[0]["dur"], 5);
  EXPECT_EQ(kernels[0]["args"]["operands"], "f32[100]");
  const auto host = Events(trace, "host");
  ASSERT_EQ(host.size(), 1u);
  EXPECT_EQ(host[0]["name"], "checkpoint");
  ASSERT_EQ(Events(trace, "step").size(), 1u);
  EXPECT_EQ(Events(trace, "step")[0]["name"], "step 3");
}

TEST_F(StepTraceTest, CpuTable_AddsUpNodesThatDoTheSame) {
  StepTrace trace = Make(true);
  const int32_t a = trace.AddCall("train", Twice("a", 100));
  const int32_t b = trace.AddCall("train", Twice("b", 100));
  const int32_t other = trace.AddCall("train", Twice("c", 50));
  trace.Start(0);
  for (int step = 0; step < 2; ++step) {
    RunFor(trace, a, 3);
    RunFor(trace, b, 5);
    RunFor(trace, other, 2);
  }
  trace.Stop(2);
  const json report = json::parse(trace.KernelsJson());
  EXPECT_EQ(report["steps"], 2);
  EXPECT_EQ(report["us_per_step"], 10);
  EXPECT_EQ(report["kernel_us_per_step"], 10);
  ASSERT_EQ(report["kernels"].size(), 2u);
  const json& row = report["kernels"][0];
  EXPECT_EQ(row["op"], "twice");
  EXPECT_EQ(row["nodes"], 2);
  EXPECT_EQ(row["launches_per_step"], 2);
  EXPECT_EQ(row["us_per_step"], 8);
  EXPECT_DOUBLE_EQ(row["share"], 0.8);
  // Two steps of two calls: 4 x 800 bytes and 4 x 200 FLOPs in 16 us.
  EXPECT_DOUBLE_EQ(row["bytes_per_s"], 2e8);
  EXPECT_DOUBLE_EQ(row["flops_per_s"], 5e7);
  EXPECT_FALSE(row.contains("of_ceiling"));
}

TEST_F(StepTraceTest, DeviceKernels_AreNamedByTheirCall) {
  StepTrace trace = Make(false);
  const int32_t call = trace.AddCall("train", Twice("a", 1000, DType::kBF16));
  const int32_t finish = trace.AddPart("finish step");
  trace.EndsStep(finish);
  trace.Ran(call, StreamTag{}, {});  // as in a capture: once a step
  trace.Ran(finish, StreamTag{}, {});
  trace.Start(10);
  clock_.Advance(absl::Microseconds(40));
  trace.Stop(12);
  trace.AddActivities({Activity("void big<int>(float*, (anonymous)::x)", 20, 3, call),
                       Activity("small(int)", 24, 1, call), Activity("finish", 30, 1, finish),
                       Activity("void big<int>(float*, (anonymous)::x)", 0, 3, call),
                       Activity("small(int)", 4, 1, call), Activity("finish", 10, 1, finish),
                       Activity("copy to device", 5, 2, -1)});
  const auto kernels = Events(trace, "kernel");
  ASSERT_EQ(kernels.size(), 7u);
  EXPECT_EQ(kernels[0]["name"], "a (twice)");
  EXPECT_EQ(kernels[0]["args"]["step"], 10);
  EXPECT_EQ(kernels.back()["name"], "finish step");
  EXPECT_EQ(kernels.back()["args"]["step"], 11);

  const json report = json::parse(trace.KernelsJson());
  ASSERT_EQ(report["kernels"].size(), 4u);
  const json& big = report["kernels"][0];
  EXPECT_EQ(big["kernel"], "big<int>");
  EXPECT_EQ(big["launches_per_step"], 1);
  EXPECT_EQ(big["us_per_step"], 3);
  // A call's bytes over the time of both of its kernels: 4000 in 4 us; 2000 FLOPs.
  EXPECT_DOUBLE_EQ(big["bytes_per_s"], 1e9);
  EXPECT_DOUBLE_EQ(big["flops_per_s"], 5e8);
  EXPECT_DOUBLE_EQ(big["of_ceiling"], 1e-3);
  for (const json& row : report["kernels"]) {
    if (row["kernel"] == "small") {
      EXPECT_FALSE(row.contains("bytes_per_s"));
    }
  }
}

TEST_F(StepTraceTest, NothingRecorded_WritesNothing) {
  TracedRank rank;
  StepTrace trace(rank, {.folder = ::testing::TempDir() + "/no-such-folder/profile"}, &Ops(),
                  &clock_);
  EXPECT_TRUE(trace.Write().ok());
}

}  // namespace
}  // namespace weft
