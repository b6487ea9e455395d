// What `weft` takes from its surroundings; no other file reads environment variables.
#pragma once

#include <string>

namespace weft::cli {

struct Environment {
  bool no_color = false;       // NO_COLOR is set and not empty
  bool dumb_terminal = false;  // TERM is "dumb" or not set
  std::string
      state_dir;  // $XDG_STATE_HOME/weft, else $HOME/.local/state/weft; empty: neither is set
  std::string temporary = "/tmp";  // $TMPDIR
  bool stdout_terminal = false;
  bool stderr_terminal = false;
  int width = 80;        // columns of the terminal at stderr
  std::string programs;  // folder of the running program
};

Environment ReadEnvironment();

}  // namespace weft::cli
