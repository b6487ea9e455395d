// The states of a job and which may follow which. Pure.
#pragma once

#include "proto/job.pb.h"

namespace weft::state {

constexpr bool IsTerminal(v1::JobState s) {
  return s == v1::JOB_STATE_DONE || s == v1::JOB_STATE_FAILED || s == v1::JOB_STATE_CANCELLED;
}

// QUEUED -> PREPARING -> RUNNING -> {DONE, FAILED, CANCELLED}; any that is not terminal may fail or
// be cancelled, and a coordinator that starts anew puts a job that had members back into the queue.
constexpr bool MayFollow(v1::JobState from, v1::JobState to) {
  switch (to) {
    case v1::JOB_STATE_QUEUED:
      return from == v1::JOB_STATE_UNSPECIFIED || from == v1::JOB_STATE_PREPARING ||
             from == v1::JOB_STATE_RUNNING;
    case v1::JOB_STATE_PREPARING:
      return from == v1::JOB_STATE_QUEUED;
    case v1::JOB_STATE_RUNNING:
      return from == v1::JOB_STATE_PREPARING;
    case v1::JOB_STATE_DONE:
      return from == v1::JOB_STATE_RUNNING;
    case v1::JOB_STATE_FAILED:
    case v1::JOB_STATE_CANCELLED:
      return from != v1::JOB_STATE_UNSPECIFIED && !IsTerminal(from);
    default:
      return false;
  }
}

// "queued", "running".
inline const char* NameOf(v1::JobState s) {
  switch (s) {
    case v1::JOB_STATE_QUEUED:
      return "queued";
    case v1::JOB_STATE_PREPARING:
      return "preparing";
    case v1::JOB_STATE_RUNNING:
      return "running";
    case v1::JOB_STATE_DONE:
      return "done";
    case v1::JOB_STATE_FAILED:
      return "failed";
    case v1::JOB_STATE_CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

}  // namespace weft::state
