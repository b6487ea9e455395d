// weft logs: what the ranks of a job wrote.
#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {

VerbBody DeclareLogs(CLI::App& app) {
  struct Flags {
    std::string id;
    int rank = -1;
    int64_t tail = 0;
    bool follow = false;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("id", flags->id, "The job's id")->required()->type_name("JOB_ID");
  app.add_option("--rank", flags->rank, "Only this rank's lines")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--tail", flags->tail, "Only the last lines; default: all that are kept")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_flag("-f,--follow", flags->follow, "Go on until the job ends");
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    v1::WatchLogsRequest request;
    request.set_id(flags->id);
    request.set_rank(flags->rank);
    request.set_tail(flags->tail);
    request.set_follow(flags->follow);
    RETURN_IF_ERROR(client->StreamLogs(request, [&](const v1::WatchLogsResponse& line) {
      if (session.printer.json()) {
        session.printer.Line(wire::MessageToJson(line));
      } else if (flags->rank >= 0) {
        session.printer.Line(line.line());
      } else {
        session.printer.Line(absl::StrCat("rank ", line.rank(), ": ", line.line()));
      }
    }));
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
