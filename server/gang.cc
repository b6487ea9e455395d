#include "server/gang.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"

#include "fabric/base/error_detail.h"

namespace weft {
namespace {

Status OfInput(Status status) {
  ErrorDetail detail;
  detail.origin = "coordinator";
  detail.action = ErrorAction::kFixInput;
  return WithDetail(std::move(status), detail);
}

// "ranks 0, 1 have A; rank 2 has B", or nothing when all have the same.
std::string DescribeGroups(const std::map<std::string, std::vector<int32_t>>& groups) {
  if (groups.size() <= 1) return "";
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : groups) {
    parts.push_back(absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                                 ranks.size() == 1 ? " has " : " have ", value));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace

v1::MemberId Gang::IdOf(int32_t rank) const {
  v1::MemberId id;
  id.set_job(job);
  id.set_generation(generation);
  id.set_rank(rank);
  return id;
}

bool Gang::AllOpened() const {
  return std::all_of(members.begin(), members.end(),
                     [](const GangMember& m) { return m.opened.has_value(); });
}

bool Gang::AllPrepared() const {
  return std::all_of(members.begin(), members.end(),
                     [](const GangMember& m) { return m.prepared.has_value(); });
}

bool Gang::AllExited() const {
  return std::all_of(members.begin(), members.end(), [](const GangMember& m) { return m.exited; });
}

std::vector<int32_t> Gang::RanksOn(const std::string& worker) const {
  std::vector<int32_t> ranks;
  for (size_t r = 0; r < members.size(); ++r) {
    if (members[r].worker == worker) ranks.push_back(static_cast<int32_t>(r));
  }
  return ranks;
}

std::vector<GangMember> MakeMembers(const std::vector<std::string>& workers) {
  std::map<std::string, int32_t> counts;
  std::vector<GangMember> members;
  for (const std::string& worker : workers) {
    GangMember member;
    member.worker = worker;
    member.local_index = counts[worker]++;
    members.push_back(std::move(member));
  }
  for (GangMember& m : members) m.local_count = counts[m.worker];
  return members;
}

StatusOr<v1::Transport> ResolveTransport(v1::Transport asked,
                                         const std::vector<GangMember>& members) {
  const bool together = std::all_of(members.begin(), members.end(), [&](const GangMember& m) {
    return m.worker == members.front().worker;
  });
  if (asked == v1::TRANSPORT_TCP) return v1::TRANSPORT_TCP;
  if (together) return v1::TRANSPORT_SHM;
  if (asked == v1::TRANSPORT_SHM) {
    return FailedPrecondition("transport shm needs all ranks on one worker; use auto or tcp");
  }
  return v1::TRANSPORT_TCP;
}

Status CheckSameData(const Gang& gang) {
  std::map<std::string, std::vector<int32_t>> groups;
  for (size_t r = 0; r < gang.members.size(); ++r) {
    groups[gang.members[r].opened->data_digest()].push_back(static_cast<int32_t>(r));
  }
  const std::string differ = DescribeGroups(groups);
  if (differ.empty()) return absl::OkStatus();
  return OfInput(FailedPrecondition("data (bytes:sha256) is not the same on all ranks: ", differ,
                                    "; give every node the same file"));
}

Status CheckSameStart(const Gang& gang) {
  std::map<std::string, std::vector<int32_t>> groups;
  for (size_t r = 0; r < gang.members.size(); ++r) {
    groups[absl::StrCat("step ", gang.members[r].prepared->start_step())].push_back(
        static_cast<int32_t>(r));
  }
  const std::string differ = DescribeGroups(groups);
  if (differ.empty()) return absl::OkStatus();
  return OfInput(FailedPrecondition("ranks would resume from different checkpoints: ", differ,
                                    "; every node must see the same checkpoint folder"));
}

v1::PhaseTime MakePhase(absl::string_view name, absl::Duration time) {
  v1::PhaseTime phase;
  phase.set_name(std::string(name));
  phase.set_ms(absl::ToDoubleMilliseconds(time));
  return phase;
}

v1::StartUp MergeStartUp(const Gang& gang, int32_t rank, const v1::StartUp& said,
                         absl::Duration total) {
  v1::StartUp merged;
  merged.set_rank(rank);
  double sum = 0;
  for (const v1::PhaseTime& phase : gang.before_members) *merged.add_phases() = phase;
  for (const v1::PhaseTime& phase : said.phases()) *merged.add_phases() = phase;
  for (const v1::PhaseTime& phase : merged.phases()) sum += phase.ms();
  // Clocks of two nodes may differ by more than a message takes.
  const double rest = std::max(0.0, absl::ToDoubleMilliseconds(total) - sum);
  *merged.add_phases() = MakePhase("messages", absl::Milliseconds(rest));
  merged.set_total_ms(sum + rest);
  return merged;
}

v1::JobResult MergeResults(const Gang& gang) {
  const GangMember& first = gang.members.front();
  v1::JobResult result;
  if (first.finished.has_value()) {
    result = *first.finished;
  } else if (first.stopped.has_value()) {
    result = *first.stopped;
  }
  int64_t peak = result.peak_memory_bytes();
  for (const GangMember& m : gang.members) {
    if (m.finished.has_value()) peak = std::max(peak, m.finished->peak_memory_bytes());
    if (m.stopped.has_value()) peak = std::max(peak, m.stopped->peak_memory_bytes());
  }
  result.set_peak_memory_bytes(peak);
  return result;
}

}  // namespace weft
