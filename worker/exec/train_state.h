// The state of a training run: its digest, and its way to and from checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"

#include "fabric/base/status.h"
#include "fabric/ckpt/manifest.h"
#include "worker/data/dataset.h"
#include "worker/exec/exec_spec.h"
#include "worker/exec/host_state.h"

namespace weft {

// SHA-256 over parameters, then each optimizer state (each in parameter name order, unpadded,
// little-endian FP32), then the loss of each step: what two runs must agree on to count as the
// same.
std::string StateDigest(const Program& program, const HostState& host,
                        absl::Span<const float> losses);

// Fills parameters and states from a verified checkpoint and returns the losses of its steps.
// FailedPrecondition says which tensor is missing or of another shape, or how its numerics section
// differs from the plan's.
StatusOr<std::vector<float>> RestoreState(const ckpt::CheckpointInfo& info, const ExecSpec& spec,
                                          HostState* host);

// Parameters alone, for sampling.
Status RestoreParameters(const ckpt::CheckpointInfo& info, const Program& program, float* flat);

// What tells the tokens' meaning: the checkpoint's own table, or absent in one without.
StatusOr<std::optional<data::TokenTable>> TokenTableOf(const ckpt::CheckpointInfo& info);

// Writes checkpoints behind the training loop's back: Save copies the state and returns, a thread
// of its own writes it. One at a time: Save waits for the one before.
class CheckpointWriter {
 public:
  struct Written {
    int64_t step = 0;
    std::string path;
    std::string digest;
  };

  // `spec` outlives the writer.
  explicit CheckpointWriter(const ExecSpec* spec);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;

  // What every checkpoint has beside the state. Call before Save.
  void Keep(data::TokenTable table) { table_ = std::move(table); }

  // Begins a checkpoint after `step` confirmed steps. Returns an error of the one before, if it had
  // one.
  Status Save(int64_t step, const HostState& host, absl::Span<const float> losses);
  // Waits for the running one.
  Status Wait();
  // What was written since the last call. Call from the thread that calls Save.
  std::vector<Written> TakeWritten();

 private:
  struct Snapshot;
  Status Write(const Snapshot& snapshot);

  const ExecSpec* spec_;
  data::TokenTable table_;
  std::unique_ptr<Snapshot> snapshot_;
  std::thread thread_;
  Status status_;                 // of the thread; read after joining
  std::vector<Written> written_;  // filled after joining
  Written running_;
};

}  // namespace weft
