// Dispatcher and eager emitter, over the tiny ops.
#include "worker/core/dispatch/dispatcher.h"

#include "fabric/opset/grad_helpers.h"
#include "tests/support/seeded.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_ops.h"

namespace weft {
namespace {

using testing::Counters;
using testing::IsStatus;
using testing::MakeTinyEmitter;
using testing::TensorOf;
using Code = absl::StatusCode;
using Floats = std::vector<float>;

class EagerTest : public ::testing::Test {
 protected:
  Floats Read(const Value& v) {
    const StatusOr<Floats> elements = ToVector<float>(v);
    EXPECT_OK(e_->status());
    EXPECT_OK(elements);
    return elements.ok() ? *elements : Floats();
  }
  std::unique_ptr<EagerEmitter> e_ = MakeTinyEmitter();
  const Tensor matrix_ = TensorOf({2, 3}, {1, 2, 3, 4, 5, 6});
};

TEST_F(EagerTest, Op_OnTensors_Computes) {
  EXPECT_EQ(Read(Add(*e_, matrix_, matrix_)), (Floats{2, 4, 6, 8, 10, 12}));
}

TEST_F(EagerTest, ManyResults_AllGiven) {
  const Values both = e_->EmitAll("split2", {matrix_}, {});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(Read(both[1]), (Floats{1, 4, 9, 16, 25, 36}));
}

TEST_F(EagerTest, SameCallAgain_BoundOnce) {
  const int before = Counters().add_binds;
  for (int i = 0; i < 5; ++i) Add(*e_, matrix_, matrix_);
  EXPECT_EQ(Counters().add_binds, before + 1);
  Add(*e_, TensorOf({6}, {1, 2, 3, 4, 5, 6}), TensorOf({6}, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Counters().add_binds, before + 2);
}

TEST_F(EagerTest, AttributesDiffer_NotConfused) {
  const auto fill = [this](double value) {
    return Read(e_->Emit("fill", {}, {{"shape", std::vector<int64_t>{1}}, {"value", value}}));
  };
  EXPECT_EQ(fill(1), (Floats{1}));
  EXPECT_EQ(fill(2), (Floats{2}));
  EXPECT_EQ(fill(1), (Floats{1}));
}

TEST_F(EagerTest, StridedInput_KernelWantsContiguous_Copied) {
  const Value t = e_->Emit("transpose", {matrix_});
  const int before = Counters().copies;
  EXPECT_EQ(Read(Add(*e_, t, t)), (Floats{2, 8, 4, 10, 6, 12}));
  EXPECT_EQ(Counters().copies, before + 2);
  EXPECT_EQ(Read(e_->Emit("copy", {t})), (Floats{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(Counters().copies, before + 3);  // copy itself takes any strides
}

TEST_F(EagerTest, Views_ShareBytes) {
  const Tensor taken = e_->Run("take", {matrix_}, {{"begin", int64_t{1}}, {"end", int64_t{2}}});
  EXPECT_EQ(taken.storage(), matrix_.storage());
  EXPECT_EQ(Read(taken), (Floats{4, 5, 6}));
  const Tensor spread =
      e_->Run("spread", {TensorOf({}, {3})}, {{"shape", std::vector<int64_t>{2, 2}}});
  EXPECT_EQ(Read(spread), (Floats{3, 3, 3, 3}));
  EXPECT_EQ(spread.strides(), (Strides{0, 0}));
}

TEST_F(EagerTest, Reshape_Contiguous_SharesBytes_OtherwiseCopies) {
  const Tensor flat = Tensor::From(Reshape(*e_, matrix_, {6}));
  EXPECT_EQ(flat.storage(), matrix_.storage());
  const Value t = e_->Emit("transpose", {matrix_});
  const Tensor copied = Tensor::From(Reshape(*e_, t, {6}));
  EXPECT_NE(copied.storage(), matrix_.storage());
  EXPECT_EQ(Read(copied), (Floats{1, 4, 2, 5, 3, 6}));
}

TEST_F(EagerTest, InPlace_WritesOperandAndBumpsVersion) {
  const Tensor a = TensorOf({2}, {1, 2}), b = TensorOf({2}, {10, 20});
  const Tensor result = e_->Run("add_into", {a, b});
  EXPECT_EQ(result.storage(), a.storage());
  EXPECT_EQ(Read(a), (Floats{11, 22}));
  EXPECT_EQ(a.storage()->version(), 1u);
  EXPECT_EQ(b.storage()->version(), 0u);
}

TEST_F(EagerTest, InPlace_StridedOperand_Refused) {
  const Value t = e_->Emit("transpose", {matrix_});
  e_->Emit("add_into", {t, t});
  EXPECT_THAT(e_->status(),
              IsStatus(Code::kInvalidArgument, "add_into: input 0, f32[3, 2], is written"));
}

TEST_F(EagerTest, Composite_ExpandsToOtherOps) {
  EXPECT_EQ(Read(e_->Emit("twice", {matrix_})), (Floats{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(Read(e_->Emit("cube", {TensorOf({2}, {2, 3})})), (Floats{8, 27}));
}

TEST_F(EagerTest, RandomOps_KeyFromCounter_SameCallsSameNumbers) {
  const Attrs shape{{"shape", std::vector<int64_t>{1}}};
  auto draw = [&](EagerEmitter& e) { return Read(e.Emit("draw", {}, shape))[0]; };
  auto e1 = MakeTinyEmitter(5), e2 = MakeTinyEmitter(5);
  EXPECT_EQ(draw(*e1), 5000);
  EXPECT_EQ(draw(*e1), 5001);
  EXPECT_EQ(draw(*e2), 5000);
  Attrs keyed = shape;
  keyed.Set("key", int64_t{42});
  EXPECT_EQ(Read(e1->Emit("draw", {}, keyed)), (Floats{5042}));
  EXPECT_EQ(draw(*e1), 5002);
}

TEST_F(EagerTest, Errors_NameOpAndCause) {
  const Tensor other = TensorOf({4}, {1, 2, 3, 4});
  const struct {
    const char* op;
    Values in;
    Attrs attrs;
    Code code;
    const char* says;
  } kRows[] = {
      {"ad", {matrix_, matrix_}, {}, Code::kNotFound, "no op 'ad'"},
      {"add", {matrix_}, {}, Code::kInvalidArgument, "add: takes 2 inputs (a, b), got 1"},
      {"add",
       {matrix_, other},
       {},
       Code::kInvalidArgument,
       "add(f32[2, 3], f32[4]): operands differ"},
      {"add", {matrix_, matrix_}, {{"x", 1.0}}, Code::kInvalidArgument, "unknown attribute 'x'"},
      {"broken", {matrix_}, {}, Code::kInternal, "broken: cpu error 7"},
      {"no_kernel", {matrix_}, {}, Code::kUnimplemented, "no_kernel: has no kernel for cpu"},
      {"neg",
       {Value(std::make_shared<ValueRep>(TensorMeta{}))},
       {},
       Code::kInvalidArgument,
       "neg: input 0"},
  };
  for (const auto& row : kRows) {
    auto e = MakeTinyEmitter();
    const Value result = e->Emit(row.op, row.in, row.attrs);
    EXPECT_FALSE(result.valid());
    EXPECT_THAT(e->status(), IsStatus(row.code, row.says));
  }
}

TEST_F(EagerTest, BindRefuses_ErrorNamesKernel) {
  const Value big =
      e_->Emit("fill", {}, {{"shape", std::vector<int64_t>{(1 << 20) + 1}}, {"value", 1.0}});
  Add(*e_, big, big);
  EXPECT_THAT(e_->status(), IsStatus(Code::kInvalidArgument, "add: kernel default: too large"));
}

TEST_F(EagerTest, AfterFirstError_LaterOpsDoNothing) {
  e_->Emit("broken", {matrix_});
  const Values both = e_->EmitAll("split2", {matrix_}, {});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_FALSE(both[0].valid());
  EXPECT_THAT(e_->status(), IsStatus(Code::kInternal, "broken"));
}

TEST_F(EagerTest, NoMemory_ErrorNamesOp) {
  DispatchContext context = testing::TinyContext();
  context.allocator = CachingAllocator::Create(MakeCpuSource(), {1024});
  EagerEmitter e(context);
  e.Emit("fill", {}, {{"shape", std::vector<int64_t>{1000}}, {"value", 1.0}});
  EXPECT_THAT(e.status(), IsStatus(Code::kResourceExhausted, "fill: no room for 3.9 KiB"));
}

TEST_F(EagerTest, ManyShapes_BindCacheStaysBounded) {
  for (int64_t n = 1; n <= 5000; ++n) {
    e_->Emit("fill", {},
             {{"shape", std::vector<int64_t>{n % 7}}, {"value", static_cast<double>(n)}});
  }
  EXPECT_OK(e_->status());
  EXPECT_LE(e_->dispatcher().bound_count(), 4096u);
}

TEST_F(EagerTest, Trace_On_RecordsOpsWithBytes) {
  DispatchContext context = testing::TinyContext();
  context.trace = std::make_shared<TraceRing>();
  EagerEmitter e(context);
  Neg(e, matrix_);
  EXPECT_TRUE(context.trace->Dump().empty());
  context.trace->Enable(true);
  Add(e, Neg(e, matrix_), matrix_);
  const std::vector<TraceRecord> records = context.trace->Dump();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_STREQ(records[0].op, "neg");
  EXPECT_STREQ(records[1].op, "add");
  EXPECT_EQ(records[1].bytes, 3 * 24);
  EXPECT_GE(records[1].start_ns, records[0].start_ns + records[0].duration_ns);
}

}  // namespace
}  // namespace weft
