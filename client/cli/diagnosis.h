// What `weft doctor` makes of a machine's facts. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/cli/printer.h"
#include "fabric/base/status.h"

namespace weft::cli {

struct Check {
  enum class State {
    kGood,
    kNote,     // works without it
    kMissing,  // does not work
  };
  std::string name;
  State state = State::kGood;
  std::string found;
  std::string advice;  // what to do, where there is something to do
};

const char* NameOf(Check::State state);

// The checks on what `weft-worker probe` printed. `text` may hold other lines before it; without a
// probe in it, the one check says why the worker does not start.
std::vector<Check> ProbeChecks(const std::string& text);

bool AllWork(const std::vector<Check>& checks);
Table CheckTable(const std::vector<Check>& checks);
// One line: {"ok", "checks": [{"name", "state", "found", "advice"}]}.
std::string ChecksJson(const std::vector<Check>& checks);

}  // namespace weft::cli
