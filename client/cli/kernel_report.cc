#include "client/cli/kernel_report.h"

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace weft::cli {
namespace {

using nlohmann::json;

constexpr double kLeastShare = 0.001;

std::string Cut(std::string text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

std::string Rate(const json& row, const char* key, double unit) {
  const double value = row.value(key, 0.0);
  return value > 0 ? absl::StrFormat("%.4g", value / unit) : "-";
}

std::vector<std::string> RowOf(const json& row) {
  const std::string node = row.value("node", "");
  const int64_t nodes = row.value("nodes", int64_t{0});
  const double ceiling = row.value("of_ceiling", 0.0);
  return {row.value("op", "-"),
          Cut(row.value("kernel", ""), 48),
          nodes > 1 ? absl::StrCat(Cut(node, 24), " x", nodes) : Cut(node, 24),
          absl::StrFormat("%.4g", row.value("launches_per_step", 0.0)),
          absl::StrFormat("%.1f", row.value("us_per_step", 0.0)),
          absl::StrFormat("%.1f %%", 100 * row.value("share", 0.0)),
          Rate(row, "bytes_per_s", 1e9),
          Rate(row, "flops_per_s", 1e12),
          ceiling > 0 ? absl::StrFormat("%.0f %%", 100 * ceiling) : "-"};
}

std::string SummaryOf(const json& report) {
  const int64_t first = report.value("first_step", int64_t{0});
  const int64_t steps = report.value("steps", int64_t{0});
  std::string text = absl::StrFormat(
      "steps %d to %d of rank %d on %s: %.3f ms a step, %.3f ms of it in kernels", first,
      first + steps - 1, report.value("rank", 0), report.value("device", "?"),
      report.value("us_per_step", 0.0) / 1000, report.value("kernel_us_per_step", 0.0) / 1000);
  const json ceilings = report.value("ceilings", json::object());
  if (const double memory = ceilings.value("memory_bytes_per_s", 0.0); memory > 0) {
    absl::StrAppendFormat(&text, "\nceilings: %.4g GB/s, TFLOP/s fp32 %.3g, tf32 %.3g, bf16 %.3g",
                          memory / 1e9, ceilings.value("fp32_flops_per_s", 0.0) / 1e12,
                          ceilings.value("tf32_flops_per_s", 0.0) / 1e12,
                          ceilings.value("bf16_flops_per_s", 0.0) / 1e12);
  }
  if (report.contains("note")) absl::StrAppend(&text, "\n", report.value("note", ""));
  return text;
}

}  // namespace

StatusOr<KernelReport> ReadKernelReport(const std::string& text) {
  const json report = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !report.contains("kernels") || !report["kernels"].is_array()) {
    return absl::DataLossError("kernels.json is no table of kernels");
  }
  try {
    KernelReport result;
    result.table.header = {"OP",    "KERNEL", "WHERE",   "RUNS", "US",
                           "SHARE", "GB/S",   "TFLOP/S", "PEAK"};
    result.table.right = {false, false, false, true, true, true, true, true, true};
    double rest_us = 0, rest_share = 0, rest_runs = 0;
    for (const json& row : report["kernels"]) {
      if (row.value("share", 0.0) >= kLeastShare) {
        result.table.rows.push_back(RowOf(row));
        continue;
      }
      rest_us += row.value("us_per_step", 0.0);
      rest_share += row.value("share", 0.0);
      rest_runs += row.value("launches_per_step", 0.0);
    }
    if (rest_runs > 0) {
      result.table.rows.push_back(RowOf({{"op", "(rest)"},
                                         {"us_per_step", rest_us},
                                         {"share", rest_share},
                                         {"launches_per_step", rest_runs}}));
    }
    result.summary = SummaryOf(report);
    return result;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat("kernels.json: ", e.what()));
  }
}

}  // namespace weft::cli
