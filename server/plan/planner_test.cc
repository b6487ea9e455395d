#include "server/plan/planner.h"

#include <functional>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

#include "fabric/graph/program_check.h"
#include "fabric/wire/convert_plan.h"

namespace weft::plan {
namespace {

v1::JobSpec Parse(const std::string& text) {
  v1::JobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

v1::JobSpec Reversal() {
  return Parse(R"(
    name: "reversal"
    model { gpt { layers: 2 heads: 4 dim: 128 context: 64 vocab: 36 position: POSITION_ROTARY norm: NORM_RMS tied: false } }
    data { reverse { symbols: 32 max_length: 16 eval_samples: 1000 } }
    train { steps: 700 batch: 60 optimizer { sgd { lr: 0.1 clamp: 1 } } schedule { warmup: 20 decay: DECAY_COSINE } }
    ranks { min: 1 max: 6 }
    lanes: 12)");
}

WorkerOffer Worker(const std::string& id, int32_t slots) {
  WorkerOffer w;
  w.worker = id;
  w.free_slots = w.slots = slots;
  w.cores = 2 * slots;
  w.instruction_sets = {"avx512", "avx2", "sse2"};
  w.libraries = {{"onednn", "2.6.3"}};
  w.opset_digest = BuiltinOpSet().Digest();
  return w;
}

WorkerOffer GpuWorker(const std::string& id, int32_t slots) {
  WorkerOffer w = Worker(id, slots);
  w.gpu = {slots, "NVIDIA H200", 132, int64_t{140} << 30, {{"cublaslt", "12.9"}}};
  return w;
}

StatusOr<Plan> PlanOf(const v1::JobSpec& spec, const std::vector<WorkerOffer>& workers,
                      PlanOptions options = {}) {
  return MakePlan(BuiltinOpSet(), spec, workers, options);
}

void ExpectRefused(const StatusOr<Plan>& plan, absl::StatusCode code, const std::string& says) {
  EXPECT_EQ(plan.status().code(), code) << says;
  EXPECT_NE(std::string(plan.status().message()).find(says), std::string::npos) << plan.status();
}

TEST(MakePlan, FreeSlots_GiveRanksWithinTheBounds) {
  const struct { int32_t slots, ranks; } rows[] = {{1, 1}, {4, 4}, {6, 6}, {9, 6}};
  for (const auto& row : rows) {
    const StatusOr<Plan> plan = PlanOf(Reversal(), {Worker("a", row.slots)});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->ranks, row.ranks);
    EXPECT_EQ(plan->lanes, 12);
    EXPECT_EQ(plan->program.inputs[0].meta.shape, (Shape{5, 64}));
    EXPECT_EQ(plan->estimate.parameter_count, 403072);
    EXPECT_TRUE(ValidateProgram(BuiltinOpSet(), plan->program).ok());
  }
}

TEST(MakePlan, AnyRankCount_GivesTheSameProgram) {
  const Plan one = *PlanOf(Reversal(), {Worker("a", 1)});
  for (const int32_t ranks : {2, 3, 4, 6}) {
    const Plan many = *PlanOf(Reversal(), {}, {.ranks = ranks});
    EXPECT_EQ(wire::ToProto(many.program).ShortDebugString(),
              wire::ToProto(one.program).ShortDebugString());
    EXPECT_GT(many.estimate.wire_bytes, 0);
    EXPECT_LT(many.estimate.step_seconds, one.estimate.step_seconds);
  }
}

TEST(MakePlan, Estimate_AddsUp) {
  const Plan plan = *PlanOf(Reversal(), {Worker("a", 1)});
  const Estimate& e = plan.estimate;
  EXPECT_EQ(e.parameter_bytes, plan.program.flat_elements * 4);
  EXPECT_EQ(e.gradient_bytes,
            4 * e.parameter_bytes);  // 12 lanes on one rank: four partials at most
  EXPECT_EQ(e.total_bytes,
            e.parameter_bytes + e.gradient_bytes + e.state_bytes + e.arena_bytes + e.input_bytes);
  EXPECT_EQ(e.wire_bytes, 0);
  // 6 FLOPs a weight in products and token, and attention on top.
  const int64_t products = (2 * 12 * 128 * 128 + 128 * 36) * int64_t{6} * 60 * 64;
  EXPECT_GT(e.step_flops, products);
  EXPECT_LT(e.step_flops, products * 3 / 2);
}

TEST(MakePlan, InstructionSet_IsTheBestThatAllHave) {
  WorkerOffer old = Worker("b", 1);
  old.instruction_sets = {"avx2", "sse2"};
  EXPECT_EQ(PlanOf(Reversal(), {Worker("a", 1), old})->numerics.instruction_set, "avx2");
  EXPECT_EQ(PlanOf(Reversal(), {Worker("a", 1)})->numerics.instruction_set, "avx512");
  v1::JobSpec spec = Reversal();
  spec.set_instruction_set("avx512");
  ExpectRefused(PlanOf(spec, {Worker("a", 1), old}), absl::StatusCode::kFailedPrecondition,
                "worker b lacks instruction_set avx512; it has avx2, sse2");
}

TEST(MakePlan, NumericsDecidedBefore_AreKeptOrRefused) {
  Numerics kept = PlanOf(Reversal(), {Worker("a", 1)})->numerics;
  kept.instruction_set = "avx2";
  EXPECT_EQ(PlanOf(Reversal(), {Worker("a", 4)}, {.numerics = &kept})->numerics, kept);
  WorkerOffer other = Worker("b", 1);
  other.libraries["onednn"] = "3.0.0";
  ExpectRefused(PlanOf(Reversal(), {other}, {.numerics = &kept}),
                absl::StatusCode::kFailedPrecondition,
                "worker b has libraries (onednn 3.0.0), the job's bits are of (onednn 2.6.3)");
  WorkerOffer older = Worker("c", 1);
  older.instruction_sets = {"sse2"};
  ExpectRefused(PlanOf(Reversal(), {older}, {.numerics = &kept}),
                absl::StatusCode::kFailedPrecondition, "worker c lacks avx2");
}

v1::JobSpec In(v1::Precision precision, const std::string& device = "") {
  v1::JobSpec spec = Reversal();
  spec.mutable_train()->set_precision(precision);
  spec.set_device(device);
  return spec;
}

TEST(MakePlan, Device_IsTheGpuWhereAllHaveOne) {
  v1::JobSpec with_set = In(v1::PRECISION_FP32);
  with_set.set_instruction_set("avx2");
  const struct {
    v1::JobSpec spec;
    std::vector<WorkerOffer> workers;
    const char* device;
  } rows[] = {
      {In(v1::PRECISION_FP32), {GpuWorker("a", 2), GpuWorker("b", 1)}, "NVIDIA H200"},
      {In(v1::PRECISION_FP32), {GpuWorker("a", 2), Worker("b", 1)}, "cpu"},
      {In(v1::PRECISION_FP32), {Worker("a", 2)}, "cpu"},
      {In(v1::PRECISION_FP32), {}, "cpu"},
      {In(v1::PRECISION_BF16), {}, "cuda"},
      {In(v1::PRECISION_FP32, "cuda"), {}, "cuda"},
      {In(v1::PRECISION_TF32, "cuda"), {GpuWorker("a", 2)}, "NVIDIA H200"},
      {In(v1::PRECISION_FP32, "cpu"), {GpuWorker("a", 2)}, "cpu"},
      {with_set, {GpuWorker("a", 2)}, "cpu"},
  };
  for (const auto& row : rows) {
    const StatusOr<Plan> plan = PlanOf(row.spec, row.workers);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->numerics.device, row.device);
    EXPECT_EQ(plan->numerics.instruction_set.empty(),
              row.workers.empty() || row.device != std::string("cpu"));
  }
}

TEST(MakePlan, GpuNumerics_AreTheModelsAndItsLibraries) {
  const StatusOr<Plan> plan = PlanOf(In(v1::PRECISION_BF16), {GpuWorker("a", 2)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Numerics expected = {
      "NVIDIA H200", "", {{"cublaslt", "12.9"}}, BuiltinOpSet().Digest(), 132};
  EXPECT_EQ(plan->numerics, expected);
  EXPECT_EQ(plan->precision, ComputePrecision::kBf16);
  EXPECT_TRUE(plan->program.low_copy);
  EXPECT_TRUE(ValidateProgram(BuiltinOpSet(), plan->program).ok());
}

TEST(MakePlan, GpuNumericsDecidedBefore_AreKeptOrRefused) {
  const Numerics kept = PlanOf(In(v1::PRECISION_BF16), {GpuWorker("a", 1)})->numerics;
  EXPECT_EQ(PlanOf(In(v1::PRECISION_BF16), {GpuWorker("b", 4)}, {.numerics = &kept})->numerics,
            kept);
  const struct {
    const char* says;
    std::function<void(WorkerOffer*)> change;
  } rows[] = {
      {"worker b has device 'NVIDIA H100', the job's bits are of 'NVIDIA H200'",
       [](WorkerOffer* w) { w->gpu.model = "NVIDIA H100"; }},
      {"worker b has GPUs of 66 processors, the job's bits are of 132",
       [](WorkerOffer* w) { w->gpu.processors = 66; }},
      {"worker b has libraries (cublaslt 13.0), the job's bits are of (cublaslt 12.9)",
       [](WorkerOffer* w) { w->gpu.libraries["cublaslt"] = "13.0"; }},
      {"worker b has no GPU, the job's bits are of 'NVIDIA H200'",
       [](WorkerOffer* w) { w->gpu.count = 0; }},
  };
  for (const auto& row : rows) {
    WorkerOffer other = GpuWorker("b", 1);
    row.change(&other);
    ExpectRefused(PlanOf(In(v1::PRECISION_FP32), {GpuWorker("a", 1), other}, {.numerics = &kept}),
                  absl::StatusCode::kFailedPrecondition, row.says);
    v1::JobSpec fast = In(v1::PRECISION_FP32);
    fast.set_determinism(v1::DETERMINISM_FAST);
    const StatusOr<Plan> plan = PlanOf(fast, {other}, {.numerics = &kept});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_NE(plan->numerics, kept);
  }
  ExpectRefused(PlanOf(In(v1::PRECISION_FP32, "cpu"), {GpuWorker("a", 1)}, {.numerics = &kept}),
                absl::StatusCode::kFailedPrecondition,
                "device: the job asks for cpu, its earlier steps were computed on NVIDIA H200");
  // A job of the CPU stays there.
  const Numerics cpu = PlanOf(Reversal(), {Worker("a", 1)})->numerics;
  EXPECT_EQ(PlanOf(Reversal(), {GpuWorker("a", 1)}, {.numerics = &cpu})->numerics, cpu);
}

TEST(MakePlan, PrecisionWithoutGpu_IsRefused) {
  v1::JobSpec with_set = In(v1::PRECISION_TF32);
  with_set.set_instruction_set("avx2");
  const struct {
    v1::JobSpec spec;
    absl::StatusCode code;
    const char* says;
  } rows[] = {
      {In(v1::PRECISION_BF16), absl::StatusCode::kFailedPrecondition,
       "worker b has no GPU, and train.precision bf16 runs on GPUs only; set precision: fp32, or "
       "start workers on nodes with GPUs"},
      {In(v1::PRECISION_FP32, "cuda"), absl::StatusCode::kFailedPrecondition,
       "worker b has no GPU, and the job asks for device cuda; leave device out"},
      {In(v1::PRECISION_BF16, "cpu"), absl::StatusCode::kInvalidArgument,
       "train.precision: bf16 runs on GPUs only, and the job asks for a CPU by its device; set "
       "precision: fp32, or device: cuda"},
      {with_set, absl::StatusCode::kInvalidArgument, "asks for a CPU by its instruction_set"},
  };
  for (const auto& row : rows) {
    ExpectRefused(PlanOf(row.spec, {GpuWorker("a", 1), Worker("b", 1)}), row.code, row.says);
  }
}

TEST(MakePlan, Precisions_HaveTheirOwnCosts) {
  const Plan fp32 = *PlanOf(In(v1::PRECISION_FP32), {GpuWorker("a", 1)});
  const Plan tf32 = *PlanOf(In(v1::PRECISION_TF32), {GpuWorker("a", 1)});
  const Plan bf16 = *PlanOf(In(v1::PRECISION_BF16), {GpuWorker("a", 1)});
  EXPECT_EQ(fp32.estimate.low_bytes, 0);
  EXPECT_EQ(bf16.estimate.low_bytes, bf16.program.flat_elements * 2);
  EXPECT_EQ(bf16.estimate.parameter_bytes, fp32.estimate.parameter_bytes);
  EXPECT_LT(bf16.estimate.arena_bytes, fp32.estimate.arena_bytes * 2 / 3);
  EXPECT_EQ(bf16.estimate.total_bytes,
            bf16.estimate.parameter_bytes + bf16.estimate.low_bytes + bf16.estimate.gradient_bytes +
                bf16.estimate.state_bytes + bf16.estimate.arena_bytes + bf16.estimate.input_bytes);
  EXPECT_LT(tf32.estimate.step_seconds, fp32.estimate.step_seconds);
  EXPECT_LT(bf16.estimate.step_seconds, tf32.estimate.step_seconds);
  const Plan cpu = *PlanOf(In(v1::PRECISION_FP32, "cpu"), {GpuWorker("a", 1)});
  EXPECT_GT(cpu.estimate.step_seconds, 20 * fp32.estimate.step_seconds);
}

TEST(OfferOf, Registration_BecomesWhatItOffers) {
  v1::Registration facts;
  facts.set_slots(3);
  facts.set_memory_bytes(1000);
  EXPECT_EQ(OfferOf(facts).gpu.count, 0);
  v1::GpuFacts* gpu = facts.mutable_gpu();
  gpu->set_count(2);
  gpu->set_model("NVIDIA H200");
  gpu->set_processors(132);
  gpu->set_memory_bytes(int64_t{8} << 20);
  (*gpu->mutable_libraries())["nccl"] = "2.28";
  const WorkerOffer offer = OfferOf(facts);
  EXPECT_EQ(offer.gpu.count, 2);
  EXPECT_EQ(offer.gpu.model, "NVIDIA H200");
  EXPECT_EQ(offer.gpu.processors, 132);
  EXPECT_EQ(offer.gpu.memory_bytes, int64_t{8} << 20);
  EXPECT_EQ(offer.gpu.libraries.at("nccl"), "2.28");
}

TEST(MakePlan, RanksThatShareMemory_NeedAllOfIt) {
  WorkerOffer worker = GpuWorker("b", 6);
  const v1::JobSpec spec = In(v1::PRECISION_BF16);
  struct Case {
    int32_t gpus, ranks;
    int64_t fits;  // ranks on a GPU
    bool refused;
  };
  for (const Case& c : {Case{1, 1, 1, false}, Case{1, 2, 1, true}, Case{2, 2, 1, false},
                        Case{2, 3, 1, true}, Case{2, 3, 2, false}, Case{1, 1, 0, true}}) {
    worker.gpu.count = c.gpus;
    worker.gpu.memory_bytes = 0;
    const int64_t each = PlanOf(spec, {worker}, {.ranks = c.ranks})->estimate.total_bytes;
    worker.gpu.memory_bytes = std::max<int64_t>(1, c.fits * (each + each / 2));
    const auto plan = PlanOf(spec, {worker}, {.ranks = c.ranks});
    if (c.refused) {
      ExpectRefused(plan, absl::StatusCode::kFailedPrecondition, "MiB of memory on a GPU");
    } else {
      EXPECT_TRUE(plan.ok()) << plan.status();
    }
  }
}

TEST(MakePlan, Refusals_SayWhy) {
  v1::JobSpec spec = Reversal();
  spec.mutable_ranks()->set_min(3);
  ExpectRefused(PlanOf(spec, {Worker("a", 2)}), absl::StatusCode::kFailedPrecondition,
                "the job takes 3 to 6 ranks, 2 slots are free");
  ExpectRefused(PlanOf(spec, {Worker("a", 8)}, {.ranks = 7}), absl::StatusCode::kInvalidArgument,
                "ranks: 7 asked for, the job takes 3 to 6");
  WorkerOffer other = Worker("b", 4);
  other.opset_digest = "something else";
  ExpectRefused(PlanOf(spec, {other}), absl::StatusCode::kFailedPrecondition,
                "worker b has other ops");
  WorkerOffer small = Worker("b", 4);
  small.memory_bytes = 1 << 20;
  ExpectRefused(PlanOf(spec, {small}), absl::StatusCode::kFailedPrecondition,
                "has 1 MiB of memory");
  spec.set_lanes(2);
  ExpectRefused(PlanOf(spec, {Worker("a", 4)}), absl::StatusCode::kInvalidArgument,
                "ranks: 4 ranks cannot share 2 lanes");
  spec.set_lanes(7);
  ExpectRefused(PlanOf(spec, {Worker("a", 4)}), absl::StatusCode::kInvalidArgument,
                "train.batch: 60 does not divide into 7 lanes");
}

TEST(MakePlan, SamplingJob_OnlyPredicts) {
  v1::JobSpec spec = Reversal();
  spec.clear_train();
  spec.clear_data();
  spec.mutable_sample()->set_checkpoint("somewhere");
  const StatusOr<Plan> plan = PlanOf(spec, {GpuWorker("a", 4)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ranks, 1);
  EXPECT_EQ(plan->numerics.device, "cpu");
  EXPECT_TRUE(plan->program.train.calls.empty());
  EXPECT_TRUE(plan->program.states.empty());
  EXPECT_EQ(plan->program.logits.meta.shape, (Shape{1, 64, 36}));
  EXPECT_EQ(plan->program.parameters.size(), PlanOf(Reversal(), {})->program.parameters.size());
  EXPECT_TRUE(ValidateProgram(BuiltinOpSet(), plan->program).ok());
}

const Call* CallOf(const Section& section, const std::string& op) {
  for (const Call& call : section.calls) {
    if (call.op == op) return &call;
  }
  return nullptr;
}

TEST(MakePlan, VisionJob_AugmentsInTrainingOnly) {
  const v1::JobSpec spec = Parse(R"(
    name: "images"
    model { vit { layers: 6 heads: 8 dim: 256 class_tokens: 16 norm: NORM_RMS } }
    data { cifar10 { path: "images" } }
    train { steps: 100 batch: 24 optimizer { adamw { lr: 3e-4 } } }
    ranks { min: 1 max: 2 }
    lanes: 12)");
  const StatusOr<Plan> plan = PlanOf(spec, {Worker("a", 2)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(ValidateProgram(BuiltinOpSet(), plan->program).ok());
  EXPECT_EQ(plan->estimate.parameter_count, 4770826);
  EXPECT_EQ(plan->program.inputs[0].meta, (TensorMeta{DType::kU8, {2, 3, 32, 32}}));
  EXPECT_EQ(plan->program.inputs[1].meta, (TensorMeta{DType::kI32, {2}}));
  EXPECT_TRUE(plan->program.predict.calls.empty());
  const Call* const train = CallOf(plan->program.train, "augment_images");
  const Call* const evaluate = CallOf(plan->program.evaluate, "augment_images");
  ASSERT_TRUE(train != nullptr && evaluate != nullptr);
  EXPECT_EQ(train->attrs.GetInt("padding"), 4);
  EXPECT_TRUE(train->attrs.GetBool("flip"));
  EXPECT_EQ(evaluate->attrs.GetInt("padding"), 0);
  EXPECT_FALSE(evaluate->attrs.GetBool("flip"));
  v1::JobSpec plain = spec;
  plain.mutable_data()->mutable_cifar10()->set_augment(false);
  const StatusOr<Plan> without = PlanOf(plain, {Worker("a", 2)});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(CallOf(without->program.train, "augment_images")->attrs.GetInt("padding"), 0);
}

}  // namespace
}  // namespace weft::plan
