// weft list: the jobs that a coordinator knows.
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"
#include "fabric/wire/enum_name.h"

namespace weft::cli {
namespace {

std::string FormatTime(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

}  // namespace

VerbBody DeclareList(CLI::App& app) {
  auto limit = std::make_shared<int64_t>(50);
  app.add_option("--limit", *limit, "At most this many; 0: all")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  return [limit](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, client->List(*limit));
    if (session.printer.json()) {
      for (const v1::Job& job : jobs) session.printer.Line(wire::MessageToJson(job));
      return static_cast<int>(kSuccess);
    }
    Table table{.header = {"ID", "NAME", "STATE", "STEP", "RANKS", "CREATED", "REASON"},
                .rows = {},
                .right = {false, false, false, true, true}};
    for (const v1::Job& job : jobs) {
      table.rows.push_back({job.id(), job.spec().name(), wire::EnumNameOf(job.state()),
                            absl::StrCat(job.step()), absl::StrCat(job.ranks()),
                            FormatTime(job.create_time()), job.reason()});
    }
    session.printer.Rows(table);
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
