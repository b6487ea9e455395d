// StepTrace: what one rank did in a few steps of its run: spans of the host, and each call of the
// step program, timed by the CPU itself or by the device's tracing library. Written as a trace for
// ui.perfetto.dev and as a table of kernels. Owned by the executor; used from one thread; while it
// does not record, a call costs one look at a flag.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "fabric/base/clock.h"
#include "fabric/base/status.h"
#include "fabric/graph/program.h"
#include "fabric/opset/opset.h"
#include "worker/core/device/activity_trace.h"
#include "worker/exec/exec_spec.h"

namespace weft {

// What the trace is of.
struct TracedRank {
  std::string job;
  int32_t rank = 0;
  std::string device;  // "cpu" or a model
  bool on_cpu = true;
  DeviceCeilings ceilings;
};

class StepTrace {
 public:
  // `ops` and `clock` outlive it.
  StepTrace(TracedRank rank, ProfileSettings settings, const OpSet* ops, Clock* clock);

  // ---- Names: each gives the label of one thing that a step runs.

  int32_t AddCall(absl::string_view section, const Call& call);
  // Work that no op stands for: "all-reduce".
  int32_t AddPart(absl::string_view name);

  // ---- What runs.

  bool recording() const { return recording_; }
  absl::Duration Now() const { return clock_->Monotonic(); }
  // `label` was run or, on a device, queued on `stream`, since `begin` (by Now). On a device only a
  // recording of `stream` is labelled.
  void Ran(int32_t label, StreamTag stream, absl::Duration begin);
  // A device records its step anew, for which `Ran` is called once a call.
  void BeginCapture();
  // The call of `label` is the last of a step, on a device.
  void EndsStep(int32_t label) { last_label_ = label; }
  // One more step was confirmed.
  void Confirmed();
  // A stretch of the host's time; kept while recording, and always with `rare`.
  enum class Keep { kWhileRecording, kAlways };
  void HostSpan(const char* name, absl::Duration begin, Keep keep = Keep::kWhileRecording);

  // ---- When.

  // The first step that is recorded, and the first after it, of a run of steps [first, end).
  struct Window {
    int64_t begin = 0;
    int64_t end = 0;
  };
  static Window WindowOf(const ProfileSettings& settings, int64_t first, int64_t end);
  // No step is in flight at either.
  void Start(int64_t step);
  void Stop(int64_t step);
  // OK when nothing was recorded.
  Status Write() const;

  const std::string& folder() const { return settings_.folder; }
  // Where something could not be traced: what, and what to do.
  const std::string& note() const { return note_; }

  // ---- For tests: the two files' text.
  std::string TraceJson() const;
  std::string KernelsJson() const;
  // What a device said, as Stop gets it.
  void AddActivities(std::vector<DeviceActivity> activities);

 private:
  struct Label {
    std::string section;
    std::string op;    // or a part's name
    std::string node;  // empty: a part
    std::string operands;
    std::string kernel;  // candidate
    double flops = 0;    // one run
    double bytes = 0;    // of operands and results, one run
    enum class Rate { kFp32, kTf32, kBf16 } rate = Rate::kFp32;
    int64_t runs = 0;  // CPU: while recording; device: in one step
  };
  struct Span {
    const char* name;
    absl::Duration begin, end;
  };
  struct KernelRow;

  std::string NameOf(const DeviceActivity& activity) const;
  double RunsOf(const Label& label) const;
  std::vector<KernelRow> Rows() const;

  const TracedRank rank_;
  const ProfileSettings settings_;
  const OpSet* const ops_;
  Clock* const clock_;
  std::vector<Label> labels_;
  std::unique_ptr<ActivityTrace> device_;
  bool device_asked_ = false;
  bool recording_ = false;
  std::vector<Span> host_;
  std::vector<Span> confirmed_;  // from one confirmed step to the next
  int32_t last_label_ = -1;
  std::vector<DeviceActivity> activities_;  // on the CPU made here
  int64_t first_step_ = 0;
  int64_t steps_ = 0;
  absl::Duration began_, ended_;
  std::string note_;
};

// Times what happens in a scope. `trace` may be null.
class HostSpan {
 public:
  HostSpan(StepTrace* trace, const char* name,
           StepTrace::Keep keep = StepTrace::Keep::kWhileRecording)
      : trace_(trace), name_(name), keep_(keep) {
    if (trace_ != nullptr) begin_ = trace_->Now();
  }
  ~HostSpan() {
    if (trace_ != nullptr) trace_->HostSpan(name_, begin_, keep_);
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  StepTrace* const trace_;
  const char* const name_;
  const StepTrace::Keep keep_;
  absl::Duration begin_;
};

}  // namespace weft
