// weft cancel: asks a job to end.
#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {

VerbBody DeclareCancel(CLI::App& app) {
  struct Flags {
    std::string id;
    bool save = false;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("id", flags->id, "The job's id")->required()->type_name("JOB_ID");
  app.add_flag("--save", flags->save, "Write a checkpoint first");
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    ASSIGN_OR_RETURN(
        const v1::Job job,
        client->Cancel(flags->id, flags->save ? CancelMode::kSave : CancelMode::kDiscard));
    if (session.printer.json()) {
      session.printer.Line(wire::MessageToJson(job));
    } else {
      session.printer.TalkLine(absl::StrCat("job ", job.id(),
                                            " was asked to end; wait for it "
                                            "with: weft wait ",
                                            job.id()));
    }
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
