// weft watch: a job's progress to its end.
#include "client/cli/exit_code.h"
#include "client/cli/follow.h"
#include "client/cli/verb.h"

namespace weft::cli {

VerbBody DeclareWatch(CLI::App& app) {
  auto id = std::make_shared<std::string>();
  app.add_option("id", *id, "The job's id")->required()->type_name("JOB_ID");
  return [id](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    FollowOptions options;
    options.events = session.printer.json();
    options.progress = !options.events;
    ASSIGN_OR_RETURN(const v1::Job job, Follow(session, *client, *id, options));
    if (!options.events) PrintSummary(session, job);
    return ExitCodeOf(job.state());
  };
}

}  // namespace weft::cli
