// weft validate: every check of a job file, and nothing else. With a coordinator named it also
// admits the job; otherwise one of this command's own does.
#include <algorithm>

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {
namespace {

StatusOr<v1::Job> ValidateOn(Session& session, const v1::JobSpec& spec) {
  if (NamesCoordinator(session)) {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    return client->Validate(spec);
  }
  const int slots = std::max(spec.ranks().min(), spec.ranks().max());
  ASSIGN_OR_RETURN(const auto cluster, StartCluster(session, slots, ""));
  return cluster->client().Validate(spec);
}

}  // namespace

VerbBody DeclareValidate(CLI::App& app) {
  struct Flags {
    JobFlags job;
    bool file_only = false;
  };
  auto flags = std::make_shared<Flags>();
  DeclareJobFlags(app, &flags->job);
  app.add_flag("--file-only", flags->file_only,
               "Check spelling, types and paths only; needs no coordinator");
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(JobFile file, LoadJob(flags->job));
    if (!flags->file_only) {
      const auto job = ValidateOn(session, file.spec);
      if (!job.ok()) return file.Locate(job.status());
      if (job->has_spec()) file.spec = job->spec();
    }
    if (session.printer.json()) {
      session.printer.Line(wire::MessageToJson(file.spec));
    } else {
      session.printer.TalkLine(absl::StrCat(flags->job.file, " is a good job"));
    }
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
