// Where the words go: data to standard output, talk to standard error. Thread-safe.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "fabric/base/status.h"

namespace weft::cli {

enum class Output { kTable, kJson };

struct PrinterOptions {
  Output output = Output::kTable;
  bool headers = true;
  bool color_out = false;
  bool color_err = false;
};

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<bool> right;  // by column: numbers; may be shorter
};

// Columns two spaces apart, as wide as their widest cell (counted in code points); no spaces at
// line ends.
std::string FormatTable(const Table& table, bool with_header);

// "1.5 GiB", "12 B".
std::string FormatBytes(int64_t bytes);
// "403,072".
std::string FormatCount(int64_t count);
// "1.23 G", "45.6 k".
std::string FormatScaled(double value);
// "45.6k tokens/s".
std::string FormatRate(double tokens_per_s);
// "0:07", "12:05", "3:04:05"; "-" when it is not known.
std::string FormatSeconds(double seconds);

class Printer {
 public:
  // Both streams outlive it.
  Printer(const PrinterOptions& options, std::ostream* out, std::ostream* err);

  bool json() const { return options_.output == Output::kJson; }
  bool color_err() const { return options_.color_err; }

  void Data(absl::string_view text);  // as it is
  void Line(absl::string_view text);
  void Rows(const Table& table);
  void Talk(absl::string_view text);  // as it is, to standard error
  void TalkLine(absl::string_view text);
  // "error: <message>" and, where the code tells more than the message, what to do.
  void Error(const Status& status);

 private:
  const PrinterOptions options_;
  absl::Mutex mutex_;
  std::ostream& out_ ABSL_GUARDED_BY(mutex_);
  std::ostream& err_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::cli
