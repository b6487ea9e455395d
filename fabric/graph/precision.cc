#include "fabric/graph/precision.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "fabric/graph/builder.h"

namespace weft {
namespace {

bool F32OrBf16(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// The name of operand `i`; the last one may repeat.
const std::string& OperandName(const OpDef& op, size_t i) {
  return op.inputs[std::min(i, op.inputs.size() - 1)];
}

bool StaysFull(const OpDef& op, size_t i) {
  return std::find(op.full_inputs.begin(), op.full_inputs.end(), OperandName(op, i)) !=
         op.full_inputs.end();
}

// Emits the graph anew, each operand in the dtype that its op wants.
class Narrowing {
 public:
  Narrowing(const OpSet& ops, const Graph& graph)
      : ops_(ops),
        graph_(graph),
        builder_(ops),
        now_(graph.values.size()),
        cast_(graph.values.size()),
        names_(graph.values.size()) {}

  StatusOr<Graph> Run() {
    for (const GraphParameter& p : graph_.parameters) {
      now_[p.value] = builder_.Parameter(p.name, graph_.values[p.value], p.init, p.decay);
      names_[p.value] = p.name;
    }
    for (const GraphInput& input : graph_.inputs) {
      now_[input.value] = builder_.Input(input.name, graph_.values[input.value]);
      names_[input.value] = input.name;
    }
    for (const GraphNode& node : graph_.nodes) {
      RETURN_IF_ERROR(EmitNode(node));
      RETURN_IF_ERROR(Annotate(builder_.status(), "in bf16"));
    }
    for (const GraphOutput& output : graph_.outputs) {
      builder_.Output(output.name, As(output.value, graph_.values[output.value].dtype));
    }
    return builder_.Finish();
  }

 private:
  Status EmitNode(const GraphNode& node) {
    ASSIGN_OR_RETURN(const OpDef* op, ops_.Get(node.op));
    const DType wanted = WantedDType(*op, node);
    Values in;
    for (size_t i = 0; i < node.in.size(); ++i) {
      in.push_back(As(node.in[i], StaysFull(*op, i) ? DType::kF32 : wanted));
    }
    const Values out = builder_.EmitNamed(node.name, node.op, in, node.attrs);
    for (size_t i = 0; i < node.out.size() && i < out.size(); ++i) {
      now_[node.out[i]] = out[i];
      names_[node.out[i]] = i == 0 ? node.name : absl::StrCat(node.name, ".", i);
    }
    return absl::OkStatus();
  }

  // What `node` takes its operands in; kInvalid: each as it is.
  DType WantedDType(const OpDef& op, const GraphNode& node) const {
    if (op.name == "cast") return DType::kInvalid;
    bool narrow = op.precision == Precision::kNarrow;
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (!now_[node.in[i]].valid() || StaysFull(op, i)) continue;
      const DType dtype = now_[node.in[i]].dtype();
      if (dtype == DType::kF64) return DType::kInvalid;
      narrow |= op.precision == Precision::kFollow && dtype == DType::kBF16;
    }
    return narrow ? DType::kBF16 : DType::kF32;
  }

  // The value in `dtype`, cast at its first use in it. Other than between f32 and bf16: as it is.
  Value As(ValueId v, DType dtype) {
    const Value& now = now_[v];
    if (!now.valid() || !F32OrBf16(dtype) || !F32OrBf16(now.dtype()) || now.dtype() == dtype) {
      return now;
    }
    if (!cast_[v].valid()) {
      cast_[v] = builder_.EmitNamed(absl::StrCat(names_[v], ".", NameOf(dtype)), "cast", {now},
                                    {{"dtype", std::string(NameOf(dtype))}})[0];
    }
    return cast_[v];
  }

  const OpSet& ops_;
  const Graph& graph_;
  GraphBuilder builder_;
  Values now_;                      // by old ValueId
  Values cast_;                     // the same in the other dtype; invalid: nobody wants it yet
  std::vector<std::string> names_;  // by old ValueId: what the cast is named after
};

}  // namespace

StatusOr<Graph> Narrow(const OpSet& ops, const Graph& graph) { return Narrowing(ops, graph).Run(); }

Graph AllowTf32(const OpSet& ops, Graph graph) {
  for (GraphNode& node : graph.nodes) {
    const OpDef* op = ops.Find(node.op);
    if (op == nullptr) continue;
    const bool declares = std::any_of(op->attrs.begin(), op->attrs.end(), [](const AttrDef& a) {
      return a.name == "tf32" && a.type == AttrType::kBool;
    });
    if (declares) node.attrs.Set("tf32", true);
  }
  return graph;
}

bool IsNarrowingCast(const Graph& graph, const GraphNode& node) {
  return node.op == "cast" && graph.values[node.in[0]].dtype == DType::kF32 &&
         graph.values[node.out[0]].dtype == DType::kBF16;
}

}  // namespace weft
