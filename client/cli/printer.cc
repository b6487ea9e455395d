#include "client/cli/printer.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace weft::cli {
namespace {

constexpr char kRed[] = "\033[31;1m";
constexpr char kBold[] = "\033[1m";
constexpr char kPlain[] = "\033[0m";

size_t Columns(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

absl::string_view Advice(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
      return "start a coordinator with weft-coordinator, name another with --coordinator, or run "
             "the job on this machine alone with: weft run JOB";
    case absl::StatusCode::kUnauthenticated:
      return "give the coordinator's token with --token-file or --state-dir";
    case absl::StatusCode::kInternal:
      return "this is a fault in weft; please report it with the command and the job file";
    default:
      return "";
  }
}

}  // namespace

std::string FormatTable(const Table& table, bool with_header) {
  std::vector<std::vector<std::string>> rows;
  if (with_header && !table.header.empty()) rows.push_back(table.header);
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Columns(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - Columns(row[c]), ' ');
      const bool right = c < table.right.size() && table.right[c];
      line += (c > 0 ? "  " : "") + (right ? padding + row[c] : row[c] + padding);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    text += line + "\n";
  }
  return text;
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  const int first = count < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string FormatScaled(double value) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  return absl::StrFormat("%.3g%s", value, kUnits[unit]);
}

std::string FormatRate(double tokens_per_s) {
  std::string text = FormatScaled(tokens_per_s);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text + " tokens/s";
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "-";
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
  return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
}

Printer::Printer(const PrinterOptions& options, std::ostream* out, std::ostream* err)
    : options_(options), out_(*out), err_(*err) {}

void Printer::Data(absl::string_view text) {
  absl::MutexLock lock(&mutex_);
  out_.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
}

void Printer::Line(absl::string_view text) { Data(absl::StrCat(text, "\n")); }

void Printer::Rows(const Table& table) {
  std::string text = FormatTable(table, options_.headers);
  if (options_.color_out && options_.headers && !table.header.empty()) {
    text.insert(text.find('\n'), kPlain);
    text.insert(0, kBold);
  }
  Data(text);
}

void Printer::Talk(absl::string_view text) {
  absl::MutexLock lock(&mutex_);
  err_.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
}

void Printer::TalkLine(absl::string_view text) { Talk(absl::StrCat(text, "\n")); }

void Printer::Error(const Status& status) {
  const absl::string_view advice = Advice(status.code());
  Talk(absl::StrCat(options_.color_err ? kRed : "", "error:", options_.color_err ? kPlain : "", " ",
                    status.message(), "\n",
                    advice.empty() ? "" : absl::StrCat("  ", advice, "\n")));
}

}  // namespace weft::cli
