// weft plan: what a job needs, before anything runs.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/wire/config_file.h"
#include "fabric/wire/enum_name.h"

namespace weft::cli {
namespace {

std::string SharesOf(const v1::Plan& plan) {
  std::vector<std::string> shares;
  for (const v1::LaneRange& share : plan.shares()) {
    shares.push_back(share.end() - share.begin() == 1
                         ? absl::StrCat(share.begin())
                         : absl::StrCat(share.begin(), "-", share.end() - 1));
  }
  return absl::StrJoin(shares, ", ");
}

Table TableOf(const v1::JobSpec& spec, const v1::Plan& plan) {
  const v1::Estimate& e = plan.estimate();
  Table table{.header = {"WHAT", "VALUE", "NOTE"}, .rows = {}, .right = {}};
  const auto add = [&](const char* what, std::string value, std::string note = "") {
    table.rows.push_back({what, std::move(value), std::move(note)});
  };
  add("job", spec.name());
  add("parameters", FormatCount(e.parameter_count()));
  const v1::Numerics& numerics = plan.numerics();
  add("device", numerics.device(),
      numerics.processors() > 0 ? absl::StrCat(numerics.processors(), " processors") : "");
  add("precision", wire::EnumNameOf(plan.precision()),
      spec.train().stochastic_rounding() ? "parameters rounded stochastically" : "");
  add("ranks", absl::StrCat(plan.ranks()), plan.reason());
  add("lanes", absl::StrCat(plan.lanes()),
      absl::StrCat(plan.batch(), " samples a step; lanes by rank: ", SharesOf(plan)));
  add("reduce", wire::EnumNameOf(plan.reduce()));
  add("memory", FormatBytes(e.total_bytes()), "a rank, of which:");
  add("  parameters", FormatBytes(e.parameter_bytes()));
  if (e.low_bytes() > 0) add("  bf16 copy", FormatBytes(e.low_bytes()), "of the parameters");
  add("  gradients", FormatBytes(e.gradient_bytes()));
  add("  optimizer", FormatBytes(e.state_bytes()));
  add("  activations", FormatBytes(e.arena_bytes()));
  add("  inputs", FormatBytes(e.input_bytes()));
  add("wire", FormatBytes(e.wire_bytes()), "sent by the busiest rank, a step");
  add("compute", absl::StrCat(FormatScaled(static_cast<double>(e.step_flops())), "FLOP"),
      "a step, all ranks");
  add("step time", absl::StrFormat("%.3g ms", e.step_seconds() * 1000), "estimated");
  add("run time", FormatSeconds(e.step_seconds() * static_cast<double>(spec.train().steps())),
      absl::StrCat(FormatCount(spec.train().steps()), " steps"));
  std::vector<std::string> libraries;
  for (const auto& [name, version] : numerics.libraries()) {
    libraries.push_back(absl::StrCat(name, " ", version));
  }
  std::sort(libraries.begin(), libraries.end());
  add("numerics",
      absl::StrCat(numerics.device(), numerics.instruction_set().empty() ? "" : " ",
                   numerics.instruction_set()),
      absl::StrCat(absl::StrJoin(libraries, ", "), libraries.empty() ? "" : ", ", "ops ",
                   numerics.opset_digest().substr(0, 12)));
  return table;
}

StatusOr<v1::Plan> PlanOn(Session& session, const v1::JobSpec& spec, int ranks) {
  if (NamesCoordinator(session)) {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    return client->Plan(spec, ranks);
  }
  const int slots = std::max({ranks, spec.ranks().min(), spec.ranks().max()});
  ASSIGN_OR_RETURN(const auto cluster, StartCluster(session, slots, ""));
  return cluster->client().Plan(spec, ranks);
}

}  // namespace

VerbBody DeclarePlan(CLI::App& app) {
  auto flags = std::make_shared<JobFlags>();
  DeclareJobFlags(app, flags.get());
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const JobFile file, LoadJob(*flags));
    const auto plan = PlanOn(session, file.spec, flags->ranks);
    if (!plan.ok()) return file.Locate(plan.status());
    if (session.printer.json()) {
      session.printer.Line(wire::MessageToJson(*plan));
    } else {
      session.printer.Rows(TableOf(file.spec, *plan));
    }
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
