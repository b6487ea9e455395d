// ExecSpec: everything an executor is told about its member of a job, as plain values.
// worker/exec/link fills it from the wire; nothing else here knows how it travelled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"

#include "fabric/base/ids.h"
#include "fabric/mesh/plan.h"
#include "worker/data/dataset.h"

namespace weft {

struct CheckpointSettings {
  std::string path;   // folder of the job's checkpoints
  int64_t every = 0;  // steps; 0: only at the end
  int keep = 2;
  bool resume = false;  // from the newest verified one, when there is one
};

struct SampleSettings {
  std::string checkpoint;  // one checkpoint's folder, or a folder of them
  std::string prompt;
  int64_t tokens = 0;
  double temperature = 0;  // 0: the likeliest each time
  int64_t top_k = 0;       // 0: all
  uint64_t seed = 0;
  data::TextOptions text;  // what the tokens are, where the checkpoint does not tell
};

// On the monotonic clock; zero: not known, and then no time is counted before the executor's own.
struct StartTimes {
  absl::Duration asked;    // the worker was told to start this member
  absl::Duration forked;   // it forked
  absl::Duration entered;  // the process came to its main function
};

struct ProfileSettings {
  int64_t steps = 5;
  int64_t after = 5;   // steps of this run that come before
  std::string folder;  // made when it is written
};

struct ExecSpec {
  JobId job;
  Generation generation;
  int32_t rank = 0;
  std::string job_name;
  std::string spec_json;  // the job spec, kept in checkpoints
  std::string
      numerics_json;  // the plan's numerics section, kept in checkpoints and compared on resume
  bool any_numerics = false;  // a checkpoint of other numerics will do (`determinism: fast`)
  Plan plan;
  int64_t steps = 0;
  uint64_t seed = 0;
  std::variant<std::monostate, data::TextOptions, data::ReverseOptions, data::TokenOptions,
               data::Cifar10Options>
      data;
  CheckpointSettings checkpoint;
  int64_t eval_every = 0;  // steps; 0: only at the end
  std::optional<SampleSettings> sample;
  std::optional<ProfileSettings> profile;
  StartTimes started;
  int threads = 1;
  int32_t device_index = 0;  // of the node's devices of the plan's kind
};

}  // namespace weft
