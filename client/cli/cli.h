// The command line of `weft`: parses, runs one verb, and turns what comes back into words and an
// exit code.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "client/cli/environment.h"
#include "client/interrupts.h"

namespace weft::cli {

// `arguments` without the program's name.
int RunCli(const std::vector<std::string>& arguments, const Environment& environment,
           Interrupts& interrupts, std::ostream& out, std::ostream& err);

}  // namespace weft::cli
