#include "fabric/graph/print.h"

#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

constexpr const char* kInitNames[] = {"zeros", "ones", "normal", "uniform"};
constexpr const char* kSpaceNames[] = {"param", "grad",  "state", "stats",
                                       "input", "arena", "step",  "low"};

std::string ToString(const AttrValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>)
          return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, std::string>)
          return absl::StrCat("\"", v, "\"");
        else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
          return absl::StrCat("[", absl::StrJoin(v, ", "), "]");
        else
          return absl::StrCat(v);
      },
      value);
}

std::string InitText(const InitRule& init, bool decay) {
  std::string text = kInitNames[static_cast<int>(init.kind)];
  if (init.scale != 0) absl::StrAppend(&text, "(", init.scale, ")");
  return decay ? text + " decay" : text;
}

std::string ValueText(const Graph& graph, ValueId v) {
  return absl::StrCat("%", v, ": ", ToString(graph.values[v]));
}

std::string OperandText(const Operand& o) {
  std::string text = kSpaceNames[static_cast<int>(o.space)];
  if (o.space == Space::kState || o.space == Space::kInput) absl::StrAppend(&text, o.index);
  absl::StrAppend(&text, "+", o.offset, ":", ToString(o.meta));
  if (!IsContiguous(o.meta.shape, o.strides)) absl::StrAppend(&text, "/", ToString(o.strides));
  return text;
}

std::string OperandsText(const std::vector<Operand>& operands) {
  return absl::StrJoin(operands, ", ",
                       [](std::string* out, const Operand& o) { *out += OperandText(o); });
}

void AppendSection(const char* name, const Section& section, std::string* out) {
  if (section.calls.empty()) return;
  absl::StrAppend(out, name, " (", section.calls.size(), " calls, arena ", section.arena_bytes,
                  " bytes)\n");
  for (const Call& call : section.calls) {
    const std::string attrs = ToString(call.attrs);
    absl::StrAppend(out, "  ", call.node, ": ", call.op, attrs.empty() ? "" : " {" + attrs + "}",
                    " (", OperandsText(call.in), ") -> (", OperandsText(call.out), ")\n");
  }
}

void AppendInputs(const char* name, const std::vector<InputSlot>& inputs, std::string* out) {
  for (const InputSlot& input : inputs) {
    absl::StrAppend(out, name, " ", input.name, ": ", ToString(input.meta), "\n");
  }
}

}  // namespace

std::string ToString(const Attrs& attrs) {
  return absl::StrJoin(attrs.map(), " ", [](std::string* out, const auto& item) {
    absl::StrAppend(out, item.first, "=", ToString(item.second));
  });
}

std::string ToString(const Graph& graph) {
  std::string out;
  for (const GraphParameter& p : graph.parameters) {
    absl::StrAppend(&out, "parameter ", p.name, " ", ValueText(graph, p.value), " ",
                    InitText(p.init, p.decay), "\n");
  }
  for (const GraphInput& i : graph.inputs) {
    absl::StrAppend(&out, "input ", i.name, " ", ValueText(graph, i.value), "\n");
  }
  const auto result = [&graph](std::string* s, ValueId v) { *s += ValueText(graph, v); };
  const auto operand = [](std::string* s, ValueId v) { absl::StrAppend(s, "%", v); };
  for (const GraphNode& n : graph.nodes) {
    const std::string attrs = ToString(n.attrs);
    absl::StrAppend(&out, n.name, ": ", n.op, attrs.empty() ? "" : " {" + attrs + "}", " (",
                    absl::StrJoin(n.in, ", ", operand), ") -> (",
                    absl::StrJoin(n.out, ", ", result), ")\n");
  }
  for (const GraphOutput& o : graph.outputs) {
    absl::StrAppend(&out, "output ", o.name, " ", ValueText(graph, o.value), "\n");
  }
  return out;
}

std::string ToString(const Program& program) {
  std::string out = absl::StrCat("flat ", program.flat_elements, " elements, states [",
                                 absl::StrJoin(program.states, ", "), "], stats [",
                                 absl::StrJoin(program.stats, ", "), "]\n");
  for (const ParameterSlot& p : program.parameters) {
    absl::StrAppend(&out, "parameter ", p.name, " ", ToString(p.shape), " at ", p.offset, " ",
                    InitText(p.init, p.decay), "\n");
  }
  AppendInputs("input", program.inputs, &out);
  AppendInputs("evaluation input", program.eval_inputs, &out);
  AppendInputs("prediction input", program.predict_inputs, &out);
  AppendSection("train", program.train, &out);
  AppendSection("update", program.update, &out);
  AppendSection("evaluate", program.evaluate, &out);
  AppendSection("predict", program.predict, &out);
  AppendSection("refresh", program.refresh, &out);
  if (!program.predict.calls.empty())
    absl::StrAppend(&out, "logits ", OperandText(program.logits), "\n");
  return out;
}

}  // namespace weft
