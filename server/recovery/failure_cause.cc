#include "server/recovery/failure_cause.h"

#include <csignal>
#include <cstring>

#include "fabric/base/error_detail.h"

namespace weft::recovery {
namespace {

// Lower is nearer to the cause.
enum Weight { kDeath = 0, kNamedError = 1, kConsequence = 2 };

bool MayFollowFromPeer(const Status& error) {
  const auto detail = GetErrorDetail(error);
  if (detail.has_value() && detail->action == ErrorAction::kRebuildComm) return true;
  return absl::IsUnavailable(error) || absl::IsAborted(error) || absl::IsDeadlineExceeded(error);
}

Weight WeightOf(const Observation& o) {
  if (o.seen == Seen::kLost || o.out_of_memory || o.signal != 0) return kDeath;
  // A process that said why before it exited: what it said is the cause.
  if (!o.error.ok()) return MayFollowFromPeer(o.error) ? kConsequence : kNamedError;
  return kDeath;
}

std::string AfterStep(int64_t step) {
  return step <= 0 ? " before its first step" : absl::StrCat(" after step ", step);
}

bool IsCrash(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL;
}

Status DeathOf(const Observation& o) {
  const std::string who = absl::StrCat("rank ", o.rank, " on worker ", o.worker);
  if (o.seen == Seen::kLost) {
    return Unavailable(who, " was lost", AfterStep(o.step), ": ", o.error.message());
  }
  if (o.out_of_memory) {
    return ResourceExhausted(who, " was killed because the node ran out of memory",
                             AfterStep(o.step), "; use more ranks or a smaller batch or model");
  }
  if (o.signal != 0) {
    const std::string text =
        absl::StrCat(who, " was killed by ", SignalName(o.signal), AfterStep(o.step));
    return IsCrash(o.signal) ? Internal(text) : Unavailable(text);
  }
  if (o.exit_code == 0) return Internal(who, " exited before the job's end", AfterStep(o.step));
  return Internal(who, " exited with code ", o.exit_code, AfterStep(o.step));
}

ErrorAction ActionFor(const Observation& o) {
  if (o.out_of_memory) return ErrorAction::kFixInput;
  if (o.seen == Seen::kLost) return ErrorAction::kRestartWorker;
  return IsCrash(o.signal) || o.signal == 0 ? ErrorAction::kReportBug : ErrorAction::kFailJob;
}

}  // namespace

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

bool IsDecisive(const Observation& o) { return WeightOf(o) != kConsequence; }

Status TrueCause(const JobAt& at, const std::vector<Observation>& seen) {
  const Observation* best = &seen.front();
  for (const Observation& o : seen) {
    if (WeightOf(o) < WeightOf(*best)) best = &o;
  }
  ErrorDetail detail;
  Status cause;
  if (WeightOf(*best) == kDeath) {
    cause = DeathOf(*best);
    detail.origin = best->seen == Seen::kLost ? "coordinator" : "agent";
    detail.action = ActionFor(*best);
  } else {
    cause = Annotate(best->error, absl::StrCat("rank ", best->rank));
    detail.origin = "executor";
    if (const auto said = GetErrorDetail(best->error)) detail = *said;
  }
  detail.worker = best->worker;
  detail.job = at.job;
  detail.generation = at.generation;
  detail.rank = best->rank;
  if (detail.step < 0) detail.step = best->step;
  return WithDetail(cause, detail);
}

}  // namespace weft::recovery
