// Runs single ops on host arrays straight through the kernel table, with guards around every byte
// that a kernel may write. For tests; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/base/array_ref.h"
#include "fabric/opset/opset.h"
#include "tests/support/op_case.h"
#include "worker/core/dispatch/kernel_args.h"

namespace weft::testing {

// Owns the bytes of one operand, between guards.
class HostArray {
 public:
  // Contiguous, every byte 0xff, so that an element nobody writes shows as NaN or -1.
  explicit HostArray(const TensorMeta& meta);
  // Contiguous, holding `elements` rounded to the dtype.
  HostArray(const TensorMeta& meta, const Doubles& elements);
  // The same elements with dimensions in reverse order in memory and every other element unused.
  HostArray Strided() const;

  const TensorMeta& meta() const { return meta_; }
  ArrayRef ref();
  // Rows [begin, end) of dimension 0, in the same bytes.
  ArrayRef Rows(int64_t begin, int64_t end);
  Doubles ToDoubles() const;
  // Whether nobody wrote around the elements.
  bool GuardsHold() const;

 private:
  HostArray(const TensorMeta& meta, const Strides& strides, int64_t span);
  char* data();
  const char* data() const;

  TensorMeta meta_;
  Strides strides_;
  int64_t span_;  // elements from the first to the last in memory
  std::vector<char> bytes_;
};

// Elements of an operand, as doubles.
Doubles ToDoubles(const ArrayRef& ref);
// Writes element `i` (row-major) of an array.
void SetElement(const ArrayRef& ref, int64_t i, double value);

struct RunOptions {
  std::string candidate;        // empty: the first one
  TileRunner* tiles = nullptr;  // required
  StepState step;
};

// Names of the kernels that could run; {"default"} where there is no choice, empty for views.
std::vector<std::string> CandidatesOf(const OpDef& op, const std::vector<ArrayRef>& in,
                                      const std::vector<TensorMeta>& out, const Attrs& attrs);

// Infers, binds and launches. Views and in-place ops are resolved here; their results are copies.
// Internal when a kernel writes where it must not or refuses the operands.
StatusOr<std::vector<HostArray>> RunKernel(const OpDef& op, const std::vector<ArrayRef>& in,
                                           const Attrs& attrs, const RunOptions& options);

}  // namespace weft::testing
