#include "client/cli/cli.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/base/suggest.h"
#include "fabric/wire/config_file.h"
#include "fabric/wire/version.h"
#include "proto/config.pb.h"

namespace weft::cli {
namespace {

struct Declared {
  const Verb* verb;
  CLI::App* app;
  VerbBody body;
};

void DeclareGlobals(CLI::App& app, GlobalFlags* flags) {
  app.add_option("--config", flags->config, "Settings (YAML, ClientConfig); flags win")
      ->type_name("FILE");
  app.add_option("--coordinator", flags->coordinator, "Where a coordinator listens")
      ->type_name("HOST:PORT");
  app.add_option("--token-file", flags->token_file, "Its token; default: token in the state folder")
      ->type_name("FILE");
  app.add_option("--state-dir", flags->state_dir,
                 "A coordinator's state folder, for the two above; default: ~/.local/state/weft")
      ->type_name("DIR");
  app.add_option("-o,--output", flags->output, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORMAT");
  app.add_option("--color", flags->color, "auto, always or never")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  app.add_flag("--no-headers", flags->no_headers, "Tables without their first line");
}

std::string Examples(const Verb& verb) {
  return absl::StrCat("Examples:\n  ", absl::StrJoin(absl::StrSplit(verb.examples, '\n'), "\n  "));
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// The first argument that is no known verb or flag, with a suggestion; "" when all are known.
std::string Suggestion(const std::vector<std::string>& arguments, const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const Verb& verb : Verbs()) verbs.push_back(verb.name);
  std::vector<std::string> flags = FlagNames(app);
  const CLI::App* verb = nullptr;
  for (const CLI::App* parsed : app.get_subcommands()) {
    verb = parsed;
    for (const std::string& name : FlagNames(*parsed)) flags.push_back(name);
  }
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (!absl::StartsWith(argument, "-") || argument == "-") {
      if (verb != nullptr) continue;
      if (std::find(verbs.begin(), verbs.end(), argument) != verbs.end()) continue;
      return absl::StrCat("no verb '", argument, "'", DidYouMean(argument, verbs),
                          "\n  verbs: ", absl::StrJoin(verbs, ", "));
    }
    const std::string name = argument.substr(0, argument.find('='));
    if (std::find(flags.begin(), flags.end(), name) != flags.end()) continue;
    if (!absl::StartsWith(name, "--")) continue;  // may be a negative number
    return absl::StrCat("no flag '", name, "'",
                        verb == nullptr ? "" : absl::StrCat(" of weft ", verb->get_name()),
                        DidYouMean(name, flags));
  }
  return "";
}

// What was wrong with the command line.
Status UsageError(const CLI::ParseError& error, const std::vector<std::string>& arguments,
                  const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  const std::string help =
      verbs.empty() ? "weft --help" : absl::StrCat("weft ", verbs[0]->get_name(), " --help");
  if (arguments.empty()) {
    return InvalidArgument("no verb given; see: ", help);
  }
  const std::string suggestion = Suggestion(arguments, app);
  return InvalidArgument(suggestion.empty() ? std::string(error.what()) : suggestion,
                         "\n  see: ", help);
}

// The configuration file and the defaults, where no flag was given.
Status FillFlags(const Environment& environment, GlobalFlags* flags) {
  v1::ClientConfig config;
  if (!flags->config.empty()) RETURN_IF_ERROR(wire::ParseYamlFile(flags->config, &config));
  if (flags->coordinator.empty()) flags->coordinator = config.coordinator();
  if (flags->token_file.empty()) flags->token_file = config.token_file();
  if (flags->state_dir.empty()) flags->state_dir = config.state_dir();
  flags->names_coordinator = !flags->coordinator.empty() || !flags->state_dir.empty();
  if (flags->state_dir.empty()) flags->state_dir = environment.state_dir;
  return absl::OkStatus();
}

PrinterOptions PrinterOptionsOf(const GlobalFlags& flags, const Environment& environment) {
  const bool allowed = flags.color == "always" || (flags.color == "auto" && !environment.no_color &&
                                                   !environment.dumb_terminal);
  PrinterOptions options;
  options.output = flags.output == "json" ? Output::kJson : Output::kTable;
  options.headers = !flags.no_headers;
  options.color_out = allowed && (flags.color == "always" || environment.stdout_terminal);
  options.color_err = allowed && (flags.color == "always" || environment.stderr_terminal);
  return options;
}

// Exceptions of other people's code end here.
StatusOr<int> CallBody(const VerbBody& body, Session& session) {
  try {
    return body(session);
  } catch (const std::exception& e) {
    return Internal("unexpected: ", e.what());
  }
}

int RunVerb(const Declared& chosen, GlobalFlags* flags, const Environment& environment,
            Interrupts& interrupts, std::ostream& out, std::ostream& err) {
  const Status filled = FillFlags(environment, flags);
  Printer printer(PrinterOptionsOf(*flags, environment), &out, &err);
  if (!filled.ok()) {
    printer.Error(filled);
    return ExitCodeOf(filled);
  }
  Session session{*flags, environment, printer, interrupts};
  const StatusOr<int> code = CallBody(chosen.body, session);
  interrupts.ClearHandler();
  if (code.ok()) {
    if (*code != kSuccess || out) return *code;
    printer.Error(
        absl::UnknownError("standard output took only a part of what there was to say: its disk is "
                           "full or its reader has gone"));
    return kError;
  }
  printer.Error(code.status());
  // A call that a signal ended may come back with another code than Cancelled.
  return interrupts.count() > 0 ? static_cast<int>(kInterrupted) : ExitCodeOf(code.status());
}

}  // namespace

int RunCli(const std::vector<std::string>& arguments, const Environment& environment,
           Interrupts& interrupts, std::ostream& out, std::ostream& err) {
  GlobalFlags flags;
  CLI::App app("Weft trains neural networks: the same bits at any number of ranks.", "weft");
  app.set_version_flag("--version", wire::kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  DeclareGlobals(app, &flags);
  app.footer(
      "Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 denied, 5 cannot be placed,\n"
      "6 unreachable, 7 timeout, 8 conflict, 20 job failed, 21 job cancelled, 22 preempted,\n"
      "130 interrupted");
  std::vector<Declared> verbs;
  for (const Verb& verb : Verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    sub->footer(Examples(verb));
    verbs.push_back({&verb, sub, verb.declare(*sub)});
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    out << app.help() << std::flush;
    return kSuccess;
  } catch (const CLI::CallForVersion& version) {
    out << version.what() << std::endl;
    return kSuccess;
  } catch (const CLI::ParseError& error) {
    Printer printer(PrinterOptionsOf(flags, environment), &out, &err);
    printer.Error(UsageError(error, arguments, app));
    return kUsage;
  }
  for (const Declared& declared : verbs) {
    if (declared.app->parsed()) {
      return RunVerb(declared, &flags, environment, interrupts, out, err);
    }
  }
  return kUsage;
}

}  // namespace weft::cli
