// weft describe: all that a coordinator knows of one job.
#include "client/cli/exit_code.h"
#include "client/cli/summary.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {

VerbBody DeclareDescribe(CLI::App& app) {
  auto id = std::make_shared<std::string>();
  app.add_option("id", *id, "The job's id, as submit and list print it")
      ->required()
      ->type_name("JOB_ID");
  return [id](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    ASSIGN_OR_RETURN(const v1::Job job, client->Get(*id));
    if (session.printer.json()) {
      session.printer.Line(wire::MessageToJson(job));
    } else {
      session.printer.Data(SummaryText(job));
      if (job.startup_size() > 0) session.printer.Rows(StartUpTable(job));
      session.printer.Line("spec");
      session.printer.Line(wire::MessageToJson(job.spec(), 2));
    }
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
