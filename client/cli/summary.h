// How a job ended, for people and for scripts. Pure functions.
#pragma once

#include <string>

#include "client/cli/printer.h"
#include "fabric/base/status.h"
#include "proto/job.pb.h"

namespace weft::cli {

// One line of JSON: state, steps, first_loss, final_loss, losses, losses_every, eval,
// median_step_ms, train_seconds, tokens_per_s, peak_memory_bytes, state_digest, checkpoint;
// `startup` of each rank; `reason` and `error` of a job that did not end well.
std::string SummaryJson(const v1::Job& job);
// The same line for a job that never came to be.
std::string SummaryJson(const Status& error);

// A few lines with a newline each.
std::string SummaryText(const v1::Job& job);

// Milliseconds of each phase of each rank's way to its first step; empty before there was one.
Table StartUpTable(const v1::Job& job);

// "message (rank 1, step 42)".
std::string DescribeError(const v1::StatusProto& error);

}  // namespace weft::cli
