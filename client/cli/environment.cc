#include "client/cli/environment.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/string_view.h"

namespace weft::cli {
namespace {

absl::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? absl::string_view() : absl::string_view(value);
}

}  // namespace

Environment ReadEnvironment() {
  Environment environment;
  environment.no_color = !Variable("NO_COLOR").empty();
  environment.dumb_terminal = Variable("TERM").empty() || Variable("TERM") == "dumb";
  if (const absl::string_view state = Variable("XDG_STATE_HOME"); !state.empty()) {
    environment.state_dir = std::string(state) + "/weft";
  } else if (const absl::string_view home = Variable("HOME"); !home.empty()) {
    environment.state_dir = std::string(home) + "/.local/state/weft";
  }
  if (const absl::string_view folder = Variable("TMPDIR"); !folder.empty()) {
    environment.temporary = std::string(folder);
  }
  environment.stdout_terminal = isatty(STDOUT_FILENO) == 1;
  environment.stderr_terminal = isatty(STDERR_FILENO) == 1;
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    environment.width = size.ws_col;
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) environment.programs = program.parent_path().string();
  return environment;
}

}  // namespace weft::cli
