// The list of families' test rows, and the operands that a row stands for.
#pragma once

#include <string>
#include <vector>

#include "tests/ops/kernel_run.h"
#include "tests/support/op_case.h"

namespace weft::testing {

// Every family's rows, made once.
const OpCases& AllCases();

// "matmul_wide", for test names and messages.
std::string NameOf(const OpCase& c);

// The inputs' elements, as their dtypes hold them. The same in every run.
std::vector<Doubles> DrawInputs(const OpCase& c);

// Contiguous arrays of these elements.
std::vector<HostArray> MakeInputs(const OpCase& c, const std::vector<Doubles>& elements);

std::vector<TensorMeta> MetasOf(const OpCase& c);

// The row with all f32 inputs as f64, to about the precision of doubles.
OpCase Widened(const OpCase& c);

}  // namespace weft::testing
