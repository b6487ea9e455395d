// Some ops with plain loops for kernels, so that dispatcher and tape are tested without the real
// families, and with ops that these do not have: recorded writes in place, a missing rule, a kernel
// that fails. All of f32, and cast, sum and what is elementwise of bf16 too; operands of one op are
// alike.
//
//   copy(x)  cast(x, dtype)  neg(x)  add(a, b)  mul(a, b)  sum(x) -> []  recip(x): its rule names
//   the result only fill(shape, value)  draw(shape, key): random, every element is seed * 1000 +
//   key reshape(x, shape)  transpose(x) of a matrix  take(x, begin, end) of axis 0  spread(s,
//   shape) place(x, begin, rows) twice(x), cube(x): composite, cube with a rule of its own
//   split2(x) -> x, x * x: its rule names x only where a gradient comes from the second result
//   add_into(a*, b) mul_into(a*, b): in place, recorded   descend(a*, b): a -= b in place, never
//   recorded is_positive(x): not differentiable   square(x): by a gradient kernel, square_grad,
//   that has no rule no_rule(x)  bad_rule(x): its gradient has the wrong shape   broken(x): error 7
//   no_kernel(x)
#pragma once

#include <cstdint>
#include <memory>

#include "fabric/opset/opset.h"
#include "worker/core/dispatch/eager.h"
#include "worker/core/dispatch/kernel_table.h"

namespace weft::testing {

const OpSet& TinyOpSet();
const KernelTable& TinyKernels();

// How often add was bound, and copy launched, in this process. Tests take differences.
struct TinyCounters {
  int add_binds = 0;
  int copies = 0;
};
TinyCounters& Counters();

// Over the tiny ops and TestAllocator().
DispatchContext TinyContext();
std::unique_ptr<EagerEmitter> MakeTinyEmitter(uint64_t seed = 0);

}  // namespace weft::testing
