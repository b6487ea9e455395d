#include "server/state/log_store.h"

#include <utility>

namespace weft::state {
namespace {

constexpr size_t kMaxLineBytes = 8 << 10;
constexpr size_t kMaxJobBytes = 16 << 20;

}  // namespace

void LogStore::Append(const std::string& job, int32_t rank, int64_t generation, std::string line) {
  Lines& l = jobs_[job];
  if (line.size() > kMaxLineBytes) {
    line.resize(kMaxLineBytes);
    line += " [cut]";
  }
  l.bytes += line.size();
  l.kept.push_back({l.next++, rank, generation, std::move(line)});
  while (l.kept.size() > max_lines_ || l.bytes > kMaxJobBytes) {
    l.bytes -= l.kept.front().line.size();
    l.kept.pop_front();
  }
}

std::vector<LogEntry> LogStore::ReadAfter(const std::string& job, int32_t rank, int64_t after,
                                          size_t limit) const {
  std::vector<LogEntry> out;
  const auto it = jobs_.find(job);
  if (it == jobs_.end() || it->second.kept.empty()) return out;
  const auto& kept = it->second.kept;
  const int64_t first = kept.front().number;
  const size_t start = after < first ? 0 : static_cast<size_t>(after - first + 1);
  for (size_t i = start; i < kept.size() && out.size() < limit; ++i) {
    if (rank < 0 || kept[i].rank == rank) out.push_back(kept[i]);
  }
  return out;
}

int64_t LogStore::BeforeTail(const std::string& job, int32_t rank, int64_t lines) const {
  const auto it = jobs_.find(job);
  if (lines <= 0 || it == jobs_.end()) return 0;
  const auto& kept = it->second.kept;
  for (auto entry = kept.rbegin(); entry != kept.rend(); ++entry) {
    if (rank >= 0 && entry->rank != rank) continue;
    if (--lines == 0) return entry->number - 1;
  }
  return 0;
}

}  // namespace weft::state
