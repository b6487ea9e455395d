// Logging: one event a line, `event key=value ...`, to stderr. Thread-safe.
//   LOG_INFO("job admitted id={} ranks={}", id, ranks);
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"
// fmt and absl::string_view do not know each other in these versions.
template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<fmt::string_view> {
  template <typename Context>
  auto format(absl::string_view s, Context& ctx) const {
    return fmt::formatter<fmt::string_view>::format(fmt::string_view(s.data(), s.size()), ctx);
  }
};

namespace weft {

// Names this process in every line and sets the level ("debug", "info", "warn", "error").
// Call once, from main, before threads start.
void InitLog(absl::string_view process, absl::string_view level);

}  // namespace weft

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
