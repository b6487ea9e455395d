// OpDef: the whole meaning of an op without its kernels, as one literal.
// worker/core/ops/<family>/op.cc holds the literals; everything else (dispatch, tape, planner,
// docs, test sweep) reads the OpSet.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"
#include "fabric/opset/attrs.h"
#include "fabric/opset/emitter.h"

namespace weft {

enum class AttrType { kBool, kInt, kFloat, kString, kInts };

struct AttrDef {
  std::string name;
  AttrType type = AttrType::kInt;
  bool required = false;
  std::string doc;  // meaning and unit
};

// What shape inference sees. `in` has passed the arity check.
struct InferArgs {
  const std::vector<TensorMeta>& in;
  const Attrs& attrs;
};
using InferFn = std::function<StatusOr<std::vector<TensorMeta>>(const InferArgs&)>;

// What a gradient rule sees. `d[i]` is the gradient of output i; it is invalid where nothing flows
// back. `need[i]` says whether the gradient of input i is wanted: a rule may return an invalid
// value for others.
struct GradArgs {
  Emitter& e;
  const Values& in;
  const Values& out;
  const Values& d;
  const Attrs& attrs;
  const std::vector<bool>& need;
};
// One gradient an input, invalid where there is none.
using GradFn = std::function<Values(const GradArgs&)>;

struct CostArgs {
  const std::vector<TensorMeta>& in;
  const std::vector<TensorMeta>& out;
  const Attrs& attrs;
};
using CostFn = std::function<int64_t(const CostArgs&)>;

// How results relate to inputs' bytes.
enum class Alias {
  kNone,     // fresh results
  kReshape,  // result 0 is input 0's bytes in the same order under another shape
  kStrided,  // result 0 is a strided window of input 0, given by OpDef::view
  kInPlace,  // results 0..n-1 are inputs 0..n-1 themselves, written
};

// How an op takes part where a job computes in bf16 (fabric/graph/precision).
enum class Precision {
  kFull,    // in f32: bf16 operands are widened first
  kFollow,  // in bf16 where a float operand already is
  kNarrow,  // in bf16: f32 operands are narrowed first
};

// The window of a strided view: element offset into the input, and strides in elements.
struct ViewWindow {
  int64_t offset = 0;
  Strides strides;
};
using ViewFn = std::function<ViewWindow(const TensorMeta& in, const Strides& strides,
                                        const TensorMeta& out, const Attrs& attrs)>;

inline constexpr int kVariadic = -1;

struct OpDef {
  std::string name;
  std::string doc = "";  // one sentence, with the formula and its source where there is one
  std::vector<std::string> inputs = {};  // operand names; their number is the arity
  int optional_inputs = 0;               // how many of the last inputs may be left out
  bool variadic = false;                 // the last input may repeat (concat)
  std::vector<std::string> outputs = {"y"};
  std::vector<AttrDef> attrs = {};
  InferFn infer = nullptr;
  GradFn grad = nullptr;       // null with `differentiable` true means: reported at prepare
  bool differentiable = true;  // false: integer results, optimizers, gradients' own kernels
  // One label a dimension, "mk,kn->mn". A label absent on the right is reduced (sharding it gives a
  // partial sum); "." stands for all leading dimensions; "_" is a dimension that stays whole; "*"
  // as the whole string: elementwise on equal shapes; empty: replicate.
  std::string labels = "";
  CostFn flops = nullptr;  // null: one FLOP an element of the first result
  Alias alias = Alias::kNone;
  int alias_count = 1;    // kInPlace: how many leading inputs are written
  ViewFn view = nullptr;  // kStrided
  bool strided_inputs =
      false;  // its kernels take any strides; otherwise callers make inputs contiguous
  Precision precision = Precision::kFull;
  std::vector<std::string> full_inputs = {};  // operands that stay f32 beside bf16 ones
  bool random = false;  // draws from Philox by (seed, step, attribute `key`, global element);
                        // emitters fill in `key`
  // A composite op has no kernel: this emits it out of others.
  std::function<Values(Emitter&, const Values&, const Attrs&)> expand = nullptr;
};

}  // namespace weft
