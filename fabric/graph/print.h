// Graphs and programs as text for people: dumps, golden files, `-v` output. Stable for the same
// value.
#pragma once

#include <string>

#include "fabric/graph/graph.h"
#include "fabric/graph/program.h"

namespace weft {

// "causal=true heads=4".
std::string ToString(const Attrs& attrs);
// One line a parameter, input, node and output.
std::string ToString(const Graph& graph);
// One line a slot and call; operands as space+offset and meta.
std::string ToString(const Program& program);

}  // namespace weft
