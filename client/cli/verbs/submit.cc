// weft submit: a job for a running coordinator.
#include "client/cli/exit_code.h"
#include "client/cli/follow.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {

VerbBody DeclareSubmit(CLI::App& app) {
  struct Flags {
    JobFlags job;
    bool follow = false;
    std::string request_id;
  };
  auto flags = std::make_shared<Flags>();
  DeclareJobFlags(app, &flags->job);
  app.add_flag("--follow", flags->follow,
               "Follow it to its end and exit with its result; Ctrl-C leaves it running");
  app.add_option("--request-id", flags->request_id,
                 "Submitting twice with one id makes one job (default: a new one)");
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const JobFile file, LoadJob(flags->job));
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    const std::string id = flags->request_id.empty() ? MakeRequestId() : flags->request_id;
    const auto submitted = client->Submit(file.spec, id);
    if (!submitted.ok()) return file.Locate(submitted.status());
    const v1::Job& job = *submitted;
    if (!flags->follow) {
      session.printer.Line(session.printer.json() ? wire::MessageToJson(job) : job.id());
      return static_cast<int>(kSuccess);
    }
    session.printer.TalkLine(absl::StrCat("job ", job.id()));
    ASSIGN_OR_RETURN(const v1::Job ended, Follow(session, *client, job.id(), {}));
    PrintSummary(session, ended);
    return ExitCodeOf(ended.state());
  };
}

}  // namespace weft::cli
