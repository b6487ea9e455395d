// Executor: one rank's run of one job, from its spec to its result. Knows no proto and no gRPC;
// worker/exec/link drives it. Open, Prepare and Run are called once each, in this order, from one
// thread at a time; Stop from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

#include "fabric/base/status.h"
#include "fabric/ckpt/atomic_file.h"
#include "fabric/comm/communicator.h"
#include "worker/core/device/nccl_communicator.h"
#include "worker/core/dispatch/kernel_table.h"
#include "worker/data/dataset.h"
#include "worker/exec/exec_spec.h"
#include "worker/exec/start_up_clock.h"
#include "worker/exec/step_runner.h"
#include "worker/exec/step_trace.h"
#include "worker/exec/train_state.h"

namespace weft {

struct ProgressReport {
  int64_t step = 0;  // confirmed
  int64_t of = 0;
  float loss = 0;
  double step_ms = 0;  // mean since the last report
  double tokens_per_s = 0;
  std::vector<float> losses;  // of each step since the last report
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0;
  double accuracy = 0;
  int64_t targets = 0;
};

// Where the time to the first step went, from when the worker was told to start this rank.
struct StartUpReport {
  std::vector<StartUpClock::Phase> phases;
};

struct CountersReport {
  int64_t step = 0;  // confirmed
  RunnerCounters runner;
  int64_t device_used_bytes = 0;  // of the whole device; 0 on the CPU
  int64_t host_peak_bytes = 0;
};

using CheckpointReport = CheckpointWriter::Written;
using Report =
    std::variant<ProgressReport, EvalReport, CheckpointReport, StartUpReport, CountersReport>;
using ReportSink = std::function<void(const Report&)>;

struct RunResult {
  bool stopped = false;  // by Stop, before its last step
  int64_t steps = 0;
  float first_loss = 0;
  float final_loss = 0;
  EvalReport eval;
  double median_step_ms = 0;
  int64_t peak_memory_bytes = 0;
  std::string state_digest;
  std::string checkpoint;
  std::string text;
  double train_seconds = 0;
  int64_t tokens_per_step = 0;
  std::vector<float> losses;  // of the first step and each losses_every further ones
  int64_t losses_every = 1;
  std::string profile;  // folder; empty: none was asked for
};

enum class StopMode { kNone, kStop, kSaveAndStop, kAbort };

class Executor {
 public:
  explicit Executor(ExecSpec spec);
  ~Executor();

  struct Opened {
    std::string endpoint;
    std::string data_digest;
  };
  // Chooses the instruction set, opens the listener on `host`, reads the data and, on rank 0, sees
  // that this run alone writes to the folder of checkpoints.
  StatusOr<Opened> Open(const std::string& host);

  enum class Transport { kSharedMemory, kTcp };
  struct Group {
    std::vector<std::string> endpoints;  // by rank
    std::string secret;
    Transport transport = Transport::kSharedMemory;
    int shared_memory_fd = -1;
  };
  struct Prepared {
    int64_t memory_bytes = 0;
    int64_t start_step = 0;
  };
  // Joins the group, binds, allocates, restores or initializes.
  StatusOr<Prepared> Prepare(const Group& group);

  // Trains to the end (or samples). `report` is called on this thread; on other ranks than 0 with
  // start-up and counters only.
  StatusOr<RunResult> Run(const ReportSink& report);

  // kStop and kSaveAndStop: all ranks end after the same step. kAbort: now, with Aborted.
  void Stop(StopMode mode);

 private:
  Status OpenDevice();
  Status ClaimCheckpoints();
  Status Join(const Group& group);
  Status StartState(Prepared* prepared);
  StatusOr<RunResult> Sample();
  StatusOr<RunResult> Train(const ReportSink& report);
  StatusOr<StepResult> NextStep(int64_t* submitted, int64_t limit);
  int64_t NextPause(int64_t step) const;
  Status Evaluate(int64_t step, const ReportSink& report, EvalReport* last);
  Status Save(int64_t step, const ReportSink& report);
  void MakeTrace();
  Status TraceStep(int64_t step);
  void ReportStarted(const ReportSink& report);
  void ReportCounters(const ReportSink& report);
  void ReportWritten(const ReportSink& report);
  // DataLoss when ranks end with different state.
  Status CheckDigest(const std::string& digest);

  ExecSpec spec_;
  StartUpClock startup_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TileRunner> tiles_;
  std::unique_ptr<comm::TcpListener> listener_;
  std::unique_ptr<comm::Communicator> comm_;       // of the host
  std::unique_ptr<NcclCommunicator> device_comm_;  // of the device; several ranks on GPUs only
  std::unique_ptr<data::Dataset> dataset_;
  std::unique_ptr<StepTrace> trace_;  // of a job with a profile
  StepTrace::Window traced_;
  std::unique_ptr<StepRunner> runner_;
  ckpt::FolderClaim claim_;  // rank 0's, of the folder that checkpoints_ writes to
  CheckpointWriter checkpoints_;
  std::vector<float> losses_;
  std::string last_checkpoint_;
  std::atomic<StopMode> stop_{StopMode::kNone};
  std::atomic<bool> aborted_{false};
};

}  // namespace weft
