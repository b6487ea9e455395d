// weft doctor: what this machine has, what is missing, and what to do.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/child_process.h"
#include "client/cli/diagnosis.h"
#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/ckpt/atomic_file.h"
#include "fabric/wire/auth.h"
#include "fabric/wire/channel.h"

namespace weft::cli {
namespace {

using State = Check::State;

// A driver that wakes up may take some seconds.
constexpr absl::Duration kProbeLimit = absl::Seconds(60);

// What `weft-worker probe` printed; an error's text where it could not be started.
std::string Probe(const Session& session) {
  const std::string program = session.environment.programs + "/weft-worker";
  if (access(program.c_str(), X_OK) != 0) return absl::StrCat("no program ", program);
  std::string folder = session.environment.temporary + "/weft-doctor-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::StrCat("cannot write to ", session.environment.temporary, ": ",
                        std::strerror(errno), "; set TMPDIR");
  }
  const std::string output = folder + "/probe";
  std::string text;
  {
    const auto child = ChildProcess::Start({program, "probe"}, output);
    if (!child.ok()) {
      text = std::string(child.status().message());
    } else if ((*child)->WaitFor(kProbeLimit).empty()) {
      text = absl::StrCat("did not answer within ", absl::FormatDuration(kProbeLimit));
    } else {
      text = ckpt::ReadFile(output).value_or("");
    }
  }
  (void)ckpt::RemoveTree(folder);
  return text;
}

Check ProgramCheck(const Session& session) {
  const std::string program = session.environment.programs + "/weft-coordinator";
  const bool there = access(program.c_str(), X_OK) == 0;
  return {"weft-coordinator", there ? State::kGood : State::kMissing,
          there ? program : absl::StrCat("no program ", program),
          there ? "" : "build all three programs with deploy/build.sh, or copy them side by side"};
}

// Coordinator and ranks listen on ports that the system chooses.
Check PortCheck() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = fd >= 0 &&
                       bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                       listen(fd, 1) == 0;
  const std::string error = listens ? "" : std::strerror(errno);
  if (fd >= 0) close(fd);
  return {"ports", listens ? State::kGood : State::kMissing,
          listens ? "127.0.0.1 can be listened on" : absl::StrCat("127.0.0.1: ", error),
          listens ? "" : "bring the loopback device up (ip link set lo up)"};
}

// Of the coordinator that the flags name, or of the one in the state folder. Nobody needs one for
// `weft run`, so its absence is a fault only where it was named.
std::vector<Check> CoordinatorChecks(Session& session) {
  const GlobalFlags& flags = session.flags;
  const State absent = NamesCoordinator(session) ? State::kMissing : State::kNote;
  if (flags.coordinator.empty() && !wire::ReadEndpoint(flags.state_dir).ok()) {
    return {{"coordinator", absent, absl::StrCat("none was started in ", flags.state_dir),
             "weft run needs none; for a service start weft-coordinator"}};
  }
  std::vector<Check> checks;
  const std::string token =
      flags.token_file.empty() ? wire::TokenPath(flags.state_dir) : flags.token_file;
  const Status readable = wire::ReadTokenFile(token).status();
  checks.push_back({"token file", readable.ok() ? State::kGood : State::kMissing,
                    readable.ok() ? token : std::string(readable.message()),
                    readable.ok() ? "" : "give it with --token-file, mode 0600"});
  if (!readable.ok()) return checks;
  auto located = Client::Locate(flags.coordinator, flags.token_file, flags.state_dir);
  if (!located.ok()) {
    checks.push_back({"coordinator", absent, std::string(located.status().message()), ""});
    return checks;
  }
  located->retry_for = absl::ZeroDuration();
  located->call_timeout = absl::Seconds(5);
  Client client(*located);
  const auto version = client.Version();
  if (!version.ok()) {
    checks.push_back({"coordinator", absent,
                      absl::StrCat(client.address(), ": ", version.status().message()),
                      "start it, or name another with --coordinator"});
    return checks;
  }
  checks.push_back({"coordinator", State::kGood,
                    absl::StrCat(client.address(), ", version ", version->version()), ""});
  const auto workers = client.Workers();
  const size_t count = workers.ok() ? workers->size() : 0;
  checks.push_back({"workers", count > 0 ? State::kGood : State::kNote,
                    absl::StrCat(count, " registered"),
                    count > 0 ? "" : "jobs wait until a weft-worker is started"});
  return checks;
}

StatusOr<int> Diagnose(Session& session) {
  std::vector<Check> checks = {ProgramCheck(session)};
  for (Check& check : ProbeChecks(Probe(session))) checks.push_back(std::move(check));
  checks.push_back(PortCheck());
  for (Check& check : CoordinatorChecks(session)) checks.push_back(std::move(check));
  if (session.printer.json()) {
    session.printer.Line(ChecksJson(checks));
  } else {
    session.printer.Rows(CheckTable(checks));
  }
  return static_cast<int>(AllWork(checks) ? kSuccess : kError);
}

}  // namespace

VerbBody DeclareDoctor(CLI::App&) {
  return [](Session& session) { return Diagnose(session); };
}

}  // namespace weft::cli
