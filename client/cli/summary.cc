#include "client/cli/summary.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "client/cli/printer.h"
#include "fabric/wire/enum_name.h"

namespace weft::cli {
namespace {

double TokensPerSecond(const v1::JobResult& result) {
  if (result.median_step_ms() <= 0) return 0;
  return static_cast<double>(result.tokens_per_step()) * 1000 / result.median_step_ms();
}

nlohmann::json ErrorValue(const v1::StatusProto& error) {
  nlohmann::json value = {
      {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(error.code()))},
      {"message", error.message()}};
  if (error.has_detail()) {
    const v1::ErrorDetail& detail = error.detail();
    if (!detail.origin().empty()) value["origin"] = detail.origin();
    if (const std::string action = wire::EnumNameOf(detail.action()); !action.empty()) {
      value["action"] = action;
    }
    if (!detail.worker().empty()) value["worker"] = detail.worker();
    if (detail.rank() >= 0) value["rank"] = detail.rank();
    if (detail.step() >= 0) value["step"] = detail.step();
    if (!detail.op().empty()) value["op"] = detail.op();
  }
  return value;
}

nlohmann::json StartUpValue(const v1::Job& job) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const v1::StartUp& startup : job.startup()) {
    nlohmann::json phases = nlohmann::json::array();
    for (const v1::PhaseTime& phase : startup.phases()) {
      phases.push_back({{"name", phase.name()}, {"ms", phase.ms()}});
    }
    ranks.push_back({{"rank", startup.rank()},
                     {"total_ms", startup.total_ms()},
                     {"phases", std::move(phases)}});
  }
  return ranks;
}

// The slowest rank's way to its first step: "1.84 s to the first step: queue 3 ms, ...", without
// phases below a hundredth of it.
std::string StartUpText(const v1::Job& job) {
  const v1::StartUp& slowest =
      *std::max_element(job.startup().begin(), job.startup().end(),
                        [](const auto& a, const auto& b) { return a.total_ms() < b.total_ms(); });
  std::vector<std::string> parts;
  for (const v1::PhaseTime& phase : slowest.phases()) {
    if (phase.ms() * 100 < slowest.total_ms()) continue;
    parts.push_back(absl::StrFormat("%s %.0f", phase.name(), phase.ms()));
  }
  return absl::StrFormat("%.0f ms to the first step: %s", slowest.total_ms(),
                         absl::StrJoin(parts, ", "));
}

std::string Dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string SummaryJson(const v1::Job& job) {
  const v1::JobResult& result = job.result();
  nlohmann::json value = {{"id", job.id()},
                          {"name", job.spec().name()},
                          {"state", wire::EnumNameOf(job.state())},
                          {"steps", job.has_result() ? result.steps() : job.step()},
                          {"ranks", job.ranks()},
                          {"first_loss", result.first_loss()},
                          {"final_loss", result.final_loss()},
                          {"losses", result.losses()},
                          {"losses_every", result.losses_every()},
                          {"median_step_ms", result.median_step_ms()},
                          {"train_seconds", result.train_seconds()},
                          {"tokens_per_s", TokensPerSecond(result)},
                          {"peak_memory_bytes", result.peak_memory_bytes()},
                          {"state_digest", result.state_digest()},
                          {"checkpoint", result.checkpoint()}};
  if (result.has_eval()) {
    value["eval"] = {{"step", result.eval().step()},
                     {"loss", result.eval().loss()},
                     {"accuracy", result.eval().accuracy()},
                     {"targets", result.eval().targets()}};
  }
  if (!result.profile().empty()) value["profile"] = result.profile();
  if (!job.startup().empty()) value["startup"] = StartUpValue(job);
  if (!job.reason().empty()) value["reason"] = job.reason();
  if (job.has_error()) value["error"] = ErrorValue(job.error());
  return Dump(value);
}

std::string SummaryJson(const Status& error) {
  v1::StatusProto proto;
  proto.set_code(static_cast<int>(error.code()));
  proto.set_message(std::string(error.message()));
  const bool cancelled = error.code() == absl::StatusCode::kCancelled;
  return Dump({{"state", cancelled ? "cancelled" : "failed"}, {"error", ErrorValue(proto)}});
}

std::string DescribeError(const v1::StatusProto& error) {
  std::vector<std::string> where;
  if (error.has_detail()) {
    const v1::ErrorDetail& detail = error.detail();
    if (!detail.worker().empty()) where.push_back(absl::StrCat("worker ", detail.worker()));
    if (detail.rank() >= 0) where.push_back(absl::StrCat("rank ", detail.rank()));
    if (detail.step() >= 0) where.push_back(absl::StrCat("step ", detail.step()));
    if (!detail.op().empty()) where.push_back(detail.op());
  }
  return absl::StrCat(error.message(),
                      where.empty() ? "" : absl::StrCat(" (", absl::StrJoin(where, ", "), ")"));
}

Table StartUpTable(const v1::Job& job) {
  Table table;
  if (job.startup().empty()) return table;
  // Ranks have the same phases but for `capture`, which comes where the device is a GPU.
  const v1::StartUp& longest = *std::max_element(
      job.startup().begin(), job.startup().end(),
      [](const auto& a, const auto& b) { return a.phases_size() < b.phases_size(); });
  table.header = {"RANK"};
  for (const v1::PhaseTime& phase : longest.phases()) {
    table.header.push_back(absl::AsciiStrToUpper(phase.name()));
  }
  table.header.push_back("TOTAL MS");
  table.right.assign(table.header.size(), true);
  for (const v1::StartUp& startup : job.startup()) {
    std::vector<std::string> row = {absl::StrCat(startup.rank())};
    for (const v1::PhaseTime& column : longest.phases()) {
      const auto phase =
          std::find_if(startup.phases().begin(), startup.phases().end(),
                       [&](const v1::PhaseTime& p) { return p.name() == column.name(); });
      row.push_back(phase == startup.phases().end() ? "-" : absl::StrFormat("%.1f", phase->ms()));
    }
    row.push_back(absl::StrFormat("%.1f", startup.total_ms()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string SummaryText(const v1::Job& job) {
  const v1::JobResult& result = job.result();
  Table table;
  const auto add = [&](absl::string_view what, std::string value) {
    table.rows.push_back({std::string(what), std::move(value)});
  };
  add("job", absl::StrCat(job.spec().name(), " (", job.id(), "): ", wire::EnumNameOf(job.state()),
                          job.reason().empty() ? "" : ", ", job.reason()));
  if (job.has_error()) add("error", DescribeError(job.error()));
  if (result.steps() > 0) {
    add("steps", absl::StrCat(FormatCount(result.steps()), " on ", job.ranks(),
                              job.ranks() == 1 ? " rank in " : " ranks in ",
                              FormatSeconds(result.train_seconds())));
    add("loss", absl::StrFormat("%.4f -> %.4f", result.first_loss(), result.final_loss()));
  }
  if (result.has_eval()) {
    add("evaluation",
        absl::StrFormat("loss %.4f, accuracy %.2f %% of %s targets", result.eval().loss(),
                        100 * result.eval().accuracy(), FormatCount(result.eval().targets())));
  }
  if (result.median_step_ms() > 0) {
    add("step time", absl::StrFormat("%.2f ms median, %s", result.median_step_ms(),
                                     FormatRate(TokensPerSecond(result))));
  }
  if (!job.startup().empty()) add("start-up", StartUpText(job));
  if (result.peak_memory_bytes() > 0) {
    add("memory", absl::StrCat(FormatBytes(result.peak_memory_bytes()), " peak of a rank"));
  }
  if (!result.state_digest().empty()) add("digest", result.state_digest());
  if (!result.checkpoint().empty()) add("checkpoint", result.checkpoint());
  return FormatTable(table, false);
}

}  // namespace weft::cli
