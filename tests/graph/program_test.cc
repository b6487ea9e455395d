#include <iostream>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "fabric/graph/print.h"
#include "fabric/graph/program_check.h"
#include "fabric/graph/validate.h"
#include "fabric/mesh/partition.h"
#include "fabric/models/gpt.h"

namespace weft {
namespace {

GptSpec Reversal() {
  GptSpec spec;
  spec.layers = 2, spec.heads = 4, spec.dim = 128, spec.context = 64, spec.vocab = 36;
  spec.position = GptSpec::Position::kRotary;
  spec.norm = GptSpec::Norm::kRms;
  spec.tied = false;
  return spec;
}

StatusOr<Program> ProgramOf(const GptSpec& spec, const OptimizerSpec& optimizer) {
  PartitionRequest request;
  ASSIGN_OR_RETURN(request.train, BuildGpt(spec, 5, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.evaluate, BuildGpt(spec, 16, GraphMode::kTrain));
  ASSIGN_OR_RETURN(request.predict, BuildGpt(spec, 1, GraphMode::kPredict));
  request.optimizer = optimizer;
  return MakeProgram(BuiltinOpSet(), request);
}

TEST(MakeProgram, Reversal_IsValidAndFused) {
  OptimizerSpec optimizer;
  optimizer.lr = 0.1, optimizer.clamp = 1, optimizer.cosine = true, optimizer.warmup = 20,
  optimizer.total = 700;
  const StatusOr<Program> program = ProgramOf(Reversal(), optimizer);
  ASSERT_TRUE(program.ok()) << program.status();
  std::cout << ToString(*program);
  EXPECT_TRUE(ValidateProgram(BuiltinOpSet(), *program).ok())
      << ValidateProgram(BuiltinOpSet(), *program);
}

}  // namespace
}  // namespace weft
