// A verb of the command line: one file in verbs/ and one row in verbs.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

#include "client/cli/environment.h"
#include "client/cli/printer.h"
#include "client/client.h"
#include "client/interrupts.h"
#include "client/job_file.h"
#include "client/local_cluster.h"
#include "fabric/base/status.h"

namespace weft::cli {

// Flags that every verb has.
struct GlobalFlags {
  std::string config;
  std::string coordinator;
  std::string token_file;
  std::string state_dir;
  std::string output = "table";
  std::string color = "auto";
  bool no_headers = false;
  // A coordinator was named, by flag or configuration file, and not only its default place taken.
  bool names_coordinator = false;
};

// What a verb works with.
struct Session {
  const GlobalFlags& flags;
  const Environment& environment;
  Printer& printer;
  Interrupts& interrupts;
};

// Does the work and returns the exit code.
using VerbBody = std::function<StatusOr<int>(Session&)>;

struct Verb {
  const char* name;
  const char* summary;
  const char* examples;  // two lines or more, without indentation
  // Adds the verb's flags to its subcommand. The body is called after parsing, at most once.
  VerbBody (*declare)(CLI::App& app);
};

const std::vector<Verb>& Verbs();

// ---- Shared by verbs.

bool NamesCoordinator(const Session& session);
// The coordinator that the flags name, or the one of the state folder. Ctrl-C ends its streams.
StatusOr<std::unique_ptr<Client>> Connect(Session& session);
// A cluster of this command's own. `checkpoint_root` may be empty. Cancelled after Ctrl-C.
StatusOr<std::unique_ptr<LocalCluster>> StartCluster(Session& session, int ranks,
                                                     const std::string& checkpoint_root);
std::string AbsolutePath(const std::string& path);

// The flags of verbs that read a job file.
struct JobFlags {
  std::string file;
  std::vector<std::string> settings;
  int ranks = 0;
};
void DeclareJobFlags(CLI::App& app, JobFlags* flags);
// Reads the file and applies the flags. `--ranks` keeps the lanes that the file would have had, so
// that the same job gives the same bits on any number of ranks.
StatusOr<JobFile> LoadJob(const JobFlags& flags);

// In verbs/.
VerbBody DeclareRun(CLI::App& app);
VerbBody DeclareSubmit(CLI::App& app);
VerbBody DeclareList(CLI::App& app);
VerbBody DeclareDescribe(CLI::App& app);
VerbBody DeclareLogs(CLI::App& app);
VerbBody DeclareWatch(CLI::App& app);
VerbBody DeclareCancel(CLI::App& app);
VerbBody DeclareWait(CLI::App& app);
VerbBody DeclarePlan(CLI::App& app);
VerbBody DeclareValidate(CLI::App& app);
VerbBody DeclareCkpt(CLI::App& app);
VerbBody DeclareSample(CLI::App& app);
VerbBody DeclareDoctor(CLI::App& app);
VerbBody DeclareVersion(CLI::App& app);

}  // namespace weft::cli
