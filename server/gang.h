// Gang: the members of one generation of a running job, as the coordinator sees them. A plain value
// that the coordinator owns and locks; the functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "fabric/base/status.h"
#include "proto/member_api.pb.h"
#include "server/recovery/failure_cause.h"

namespace weft {

struct GangMember {
  std::string worker;
  int32_t local_index = 0;  // among its worker's members
  int32_t local_count = 1;
  std::optional<v1::OpenResponse> opened;
  std::optional<v1::PrepareResponse> prepared;
  std::optional<v1::JobResult> finished;
  std::optional<v1::JobResult> stopped;
  int64_t step = -1;    // last confirmed step it reported
  bool exited = false;  // reaped; its slot is free
};

enum class GangPhase { kPlanning, kOpening, kPreparing, kRunning, kEnding };

struct Gang {
  std::string job;
  int64_t generation = 0;
  GangPhase phase = GangPhase::kPlanning;
  std::vector<GangMember> members;  // by rank
  v1::MemberSpec spec;              // without member: the same for all ranks
  v1::Transport transport = v1::TRANSPORT_TCP;
  std::string secret;

  // Of start-up: its beginning and what the coordinator did of it.
  absl::Duration submitted_at;  // monotonic; of a later generation: when its slots were found
  absl::Duration placed_at;
  std::vector<v1::PhaseTime> before_members;

  std::vector<recovery::Observation> failures;
  absl::Duration conclude_at =
      absl::InfiniteDuration();  // when a better cause is no longer waited for

  std::optional<v1::StopMode> stop;  // asked for by a client
  absl::Duration stop_by = absl::InfiniteDuration();

  v1::MemberId IdOf(int32_t rank) const;
  bool AllOpened() const;
  bool AllPrepared() const;
  bool AllExited() const;
  // Ranks of members on `worker`.
  std::vector<int32_t> RanksOn(const std::string& worker) const;
};

// Members by rank for workers by rank.
std::vector<GangMember> MakeMembers(const std::vector<std::string>& workers);

// Auto becomes shared memory when all members are on one worker. FailedPrecondition when shared
// memory was asked for and they are not.
StatusOr<v1::Transport> ResolveTransport(v1::Transport asked,
                                         const std::vector<GangMember>& members);

// FailedPrecondition, naming ranks, when members read different data or would start at different
// steps.
Status CheckSameData(const Gang& gang);
Status CheckSameStart(const Gang& gang);

v1::PhaseTime MakePhase(absl::string_view name, absl::Duration time);
// What `rank` says of its start-up with the coordinator's side before it, and what is left up to
// `total` after it.
v1::StartUp MergeStartUp(const Gang& gang, int32_t rank, const v1::StartUp& said,
                         absl::Duration total);

// Rank 0's result with the largest memory of any rank.
v1::JobResult MergeResults(const Gang& gang);

}  // namespace weft
