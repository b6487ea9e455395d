#include "worker/exec/step_trace.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "fabric/base/log.h"
#include "fabric/ckpt/atomic_file.h"

namespace weft {
namespace {

using nlohmann::json;

// Rows of a rank in the trace.
constexpr int kHostRow = 0;
constexpr int kStepRow = 1;
constexpr int kFirstStreamRow = 2;
constexpr size_t kMostHostSpans = 1 << 20;

double Microseconds(absl::Duration d) { return absl::ToDoubleMicroseconds(d); }

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Operands(const Call& call) {
  std::vector<std::string> parts;
  for (const Operand& operand : call.in) parts.push_back(ToString(operand.meta));
  return absl::StrJoin(parts, " ");
}

// "void ns::Kernel<int, 4>(float*)" -> "ns::Kernel<int, 4>": what a call is found by in a table.
std::string ShortName(const std::string& name) {
  constexpr size_t kMost = 120;
  std::string text = name;
  if (text.rfind("void ", 0) == 0) text.erase(0, 5);
  if (!text.empty() && text.back() == ')') {
    int depth = 0;
    for (size_t at = text.size(); at-- > 0;) {
      depth += text[at] == ')' ? 1 : text[at] == '(' ? -1 : 0;
      if (depth != 0) continue;
      if (at > 0) text.erase(at);
      break;
    }
  }
  if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
  return text;
}

}  // namespace

StepTrace::StepTrace(TracedRank rank, ProfileSettings settings, const OpSet* ops, Clock* clock)
    : rank_(std::move(rank)), settings_(std::move(settings)), ops_(ops), clock_(clock) {}

int32_t StepTrace::AddCall(absl::string_view section, const Call& call) {
  Label label;
  label.section = std::string(section);
  label.op = call.op;
  label.node = call.node;
  label.operands = Operands(call);
  label.kernel = call.kernel;
  std::vector<TensorMeta> in, out;
  for (const Operand& o : call.in) {
    in.push_back(o.meta);
    label.bytes += static_cast<double>(o.meta.bytes());
    if (o.meta.dtype == DType::kBF16) label.rate = Label::Rate::kBf16;
  }
  for (const Operand& o : call.out) {
    out.push_back(o.meta);
    label.bytes += static_cast<double>(o.meta.bytes());
  }
  if (label.rate == Label::Rate::kFp32 && call.attrs.GetBool("tf32")) {
    label.rate = Label::Rate::kTf32;
  }
  if (const OpDef* op = ops_->Find(call.op); op != nullptr) {
    label.flops = static_cast<double>(FlopsOf(*op, in, out, call.attrs));
  }
  labels_.push_back(std::move(label));
  return static_cast<int32_t>(labels_.size()) - 1;
}

int32_t StepTrace::AddPart(absl::string_view name) {
  Label label;
  label.section = "step";
  label.op = std::string(name);
  labels_.push_back(std::move(label));
  return static_cast<int32_t>(labels_.size()) - 1;
}

void StepTrace::BeginCapture() {
  if (!device_asked_) {
    device_asked_ = true;
    StatusOr<std::unique_ptr<ActivityTrace>> made = MakeCudaActivityTrace();
    if (made.ok()) {
      device_ = *std::move(made);
    } else {
      note_ = std::string(made.status().message());
      LOG_WARN("profile without kernels: {}", note_);
    }
  }
  for (Label& label : labels_) label.runs = 0;
}

void StepTrace::Ran(int32_t label, StreamTag stream, absl::Duration begin) {
  if (!rank_.on_cpu) {
    // Replays do not come here: what does, while nothing is recorded, is the capture.
    if (!recording_) ++labels_[static_cast<size_t>(label)].runs;
    if (device_ != nullptr) device_->Label(stream, label);
    return;
  }
  if (!recording_) return;
  Label& named = labels_[static_cast<size_t>(label)];
  ++named.runs;
  DeviceActivity activity;
  activity.name = named.kernel.empty() ? "default" : named.kernel;
  activity.begin = begin;
  activity.end = clock_->Monotonic();
  activity.label = label;
  activities_.push_back(std::move(activity));
}

void StepTrace::HostSpan(const char* name, absl::Duration begin, Keep keep) {
  if (!recording_ && keep == Keep::kWhileRecording) return;
  if (host_.size() < kMostHostSpans) host_.push_back({name, begin, clock_->Monotonic()});
}

void StepTrace::Confirmed() {
  if (!recording_) return;
  confirmed_.push_back(
      {"step", confirmed_.empty() ? began_ : confirmed_.back().end, clock_->Monotonic()});
}

StepTrace::Window StepTrace::WindowOf(const ProfileSettings& settings, int64_t first, int64_t end) {
  const int64_t there = std::max<int64_t>(0, end - first);
  Window window;
  window.begin = first + std::min(settings.after, std::max<int64_t>(0, there - settings.steps));
  window.end = std::min(end, window.begin + settings.steps);
  return window;
}

void StepTrace::Start(int64_t step) {
  if (device_ != nullptr) {
    if (const Status started = device_->Start(); !started.ok()) {
      note_ = std::string(started.message());
      device_.reset();
    }
  }
  first_step_ = step;
  recording_ = true;
  began_ = clock_->Monotonic();
}

void StepTrace::Stop(int64_t step) {
  if (!recording_) return;
  ended_ = clock_->Monotonic();
  recording_ = false;
  steps_ = step - first_step_;
  if (device_ == nullptr) return;
  StatusOr<std::vector<DeviceActivity>> activities = device_->Stop();
  if (activities.ok()) {
    AddActivities(*std::move(activities));
    const bool named = std::any_of(activities_.begin(), activities_.end(),
                                   [](const DeviceActivity& a) { return a.label >= 0; });
    if (!named) note_ = "no kernel could be matched to a call of the step; they have names only";
  } else {
    note_ = std::string(activities.status().message());
  }
  device_.reset();
}

void StepTrace::AddActivities(std::vector<DeviceActivity> activities) {
  for (DeviceActivity& activity : activities) activities_.push_back(std::move(activity));
}

Status StepTrace::Write() const {
  if (steps_ == 0) return absl::OkStatus();
  RETURN_IF_ERROR(ckpt::MakeFolders(settings_.folder));
  RETURN_IF_ERROR(ckpt::WriteFileAtomically(
      absl::StrCat(settings_.folder, "/rank-", rank_.rank, ".trace.json"), TraceJson()));
  if (rank_.rank != 0) return absl::OkStatus();
  return ckpt::WriteFileAtomically(absl::StrCat(settings_.folder, "/kernels.json"), KernelsJson());
}

// ---- The trace.

std::string StepTrace::NameOf(const DeviceActivity& activity) const {
  if (activity.label < 0) return ShortName(activity.name);
  const Label& label = labels_[static_cast<size_t>(activity.label)];
  return label.node.empty() ? label.op : absl::StrCat(label.node, " (", label.op, ")");
}

std::string StepTrace::TraceJson() const {
  json events = json::array();
  const auto name_row = [&](int row, const std::string& name) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", rank_.rank},
                      {"tid", row},
                      {"args", {{"name", name}}}});
  };
  events.push_back(
      {{"ph", "M"},
       {"name", "process_name"},
       {"pid", rank_.rank},
       {"args", {{"name", absl::StrCat("rank ", rank_.rank, " (", rank_.device, ")")}}}});
  name_row(kHostRow, "host");
  name_row(kStepRow, "steps");
  const auto add = [&](const std::string& name, const char* category, int row, absl::Duration begin,
                       absl::Duration end, json args) {
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"cat", category},
                      {"pid", rank_.rank},
                      {"tid", row},
                      {"ts", Microseconds(begin)},
                      {"dur", Microseconds(end - begin)},
                      {"args", std::move(args)}});
  };
  for (const Span& span : host_) {
    add(span.name, "host", kHostRow, span.begin, span.end, json::object());
  }
  int64_t step = first_step_;
  for (const Span& span : confirmed_) {
    add(absl::StrCat("step ", step++), "step", kStepRow, span.begin, span.end, json::object());
  }
  std::vector<const DeviceActivity*> in_order;
  for (const DeviceActivity& a : activities_) in_order.push_back(&a);
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto* a, const auto* b) { return a->begin < b->begin; });
  step = first_step_;
  std::map<int64_t, int> rows;
  for (const DeviceActivity* activity : in_order) {
    const DeviceActivity& a = *activity;
    const auto [row, added] =
        rows.try_emplace(a.stream, kFirstStreamRow + static_cast<int>(rows.size()));
    if (added) {
      name_row(row->second, rank_.on_cpu ? "ops" : absl::StrCat("stream ", a.stream));
    }
    json args = {{"kernel", a.name}};
    if (a.bytes > 0) args["bytes"] = a.bytes;
    if (a.label >= 0) {
      const Label& label = labels_[static_cast<size_t>(a.label)];
      args["section"] = label.section;
      args["op"] = label.op;
      if (!label.operands.empty()) args["operands"] = label.operands;
      if (last_label_ >= 0) args["step"] = step;
      if (a.label == last_label_) ++step;
    }
    const char* const category = a.kind == DeviceActivity::Kind::kKernel ? "kernel"
                                 : a.kind == DeviceActivity::Kind::kCopy ? "copy"
                                                                         : "fill";
    add(NameOf(a), category, row->second, a.begin, a.end, std::move(args));
  }
  json value = {{"displayTimeUnit", "ms"},
                {"traceEvents", std::move(events)},
                {"otherData",
                 {{"job", rank_.job},
                  {"device", rank_.device},
                  {"first_step", first_step_},
                  {"steps", steps_}}}};
  if (!note_.empty()) value["otherData"]["note"] = note_;
  return Dump(value);
}

// ---- The table.

// One kernel of calls that do the same: same op, operands and section.
struct StepTrace::KernelRow {
  std::string kernel;
  const Label* label = nullptr;  // one of them; null: of no call
  std::set<int32_t> labels;
  int64_t launches = 0;
  absl::Duration time;
  // Of the calls, over the time of all their kernels; on the row of the longest of these only.
  double bytes_per_s = 0;
  double flops_per_s = 0;
  double of_ceiling = 0;
};

double StepTrace::RunsOf(const Label& label) const {
  const double runs = static_cast<double>(label.runs);
  return rank_.on_cpu ? runs : runs * static_cast<double>(steps_);
}

std::vector<StepTrace::KernelRow> StepTrace::Rows() const {
  const auto group_of = [&](int32_t label) {
    if (label < 0) return std::string();
    const Label& l = labels_[static_cast<size_t>(label)];
    return absl::StrCat(l.section, "\n", l.op, "\n", l.operands);
  };
  struct Group {
    absl::Duration time;
    std::set<int32_t> labels;
  };
  std::map<std::string, Group> groups;
  std::map<std::pair<std::string, std::string>, KernelRow> rows;
  for (const DeviceActivity& a : activities_) {
    const std::string key = group_of(a.label);
    KernelRow& row = rows[{key, a.name}];
    row.kernel = a.name;
    ++row.launches;
    row.time += a.end - a.begin;
    if (a.label < 0) continue;
    row.label = &labels_[static_cast<size_t>(a.label)];
    row.labels.insert(a.label);
    groups[key].time += a.end - a.begin;
    groups[key].labels.insert(a.label);
  }
  std::map<std::string, KernelRow*> longest;
  for (auto& [key, row] : rows) {
    KernelRow*& held = longest[key.first];
    if (held == nullptr || row.time > held->time) held = &row;
  }
  for (auto& [key, group] : groups) {
    KernelRow& row = *longest[key];
    const double seconds = absl::ToDoubleSeconds(group.time);
    if (seconds <= 0 || row.label->node.empty()) continue;
    double bytes = 0, flops = 0;
    for (const int32_t i : group.labels) {
      const Label& label = labels_[static_cast<size_t>(i)];
      bytes += RunsOf(label) * label.bytes;
      flops += RunsOf(label) * label.flops;
    }
    row.bytes_per_s = bytes / seconds;
    row.flops_per_s = flops / seconds;
    const DeviceCeilings& most = rank_.ceilings;
    const double flop_ceiling = row.label->rate == Label::Rate::kBf16   ? most.bf16_flops
                                : row.label->rate == Label::Rate::kTf32 ? most.tf32_flops
                                                                        : most.fp32_flops;
    if (most.memory_bytes > 0) row.of_ceiling = row.bytes_per_s / most.memory_bytes;
    if (flop_ceiling > 0) row.of_ceiling = std::max(row.of_ceiling, row.flops_per_s / flop_ceiling);
  }
  std::vector<KernelRow> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const KernelRow& a, const KernelRow& b) { return a.time > b.time; });
  return sorted;
}

std::string StepTrace::KernelsJson() const {
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  absl::Duration total;
  for (const DeviceActivity& a : activities_) total += a.end - a.begin;
  json kernels = json::array();
  for (const KernelRow& row : Rows()) {
    json value = {
        {"kernel", ShortName(row.kernel)},
        {"launches_per_step", static_cast<double>(row.launches) / steps},
        {"us_per_step", Microseconds(row.time) / steps},
        {"share", total > absl::ZeroDuration() ? absl::FDivDuration(row.time, total) : 0.0}};
    if (row.label != nullptr) {
      value["op"] = row.label->op;
      value["section"] = row.label->section;
      if (!row.label->node.empty()) {
        value["node"] = row.label->node;
        value["nodes"] = row.labels.size();
        value["operands"] = row.label->operands;
      }
    }
    if (row.bytes_per_s > 0) {
      value["bytes_per_s"] = row.bytes_per_s;
      value["flops_per_s"] = row.flops_per_s;
      if (row.of_ceiling > 0) value["of_ceiling"] = row.of_ceiling;
    }
    kernels.push_back(std::move(value));
  }
  std::map<std::string, std::pair<int64_t, absl::Duration>> spans;
  for (const Span& span : host_) {
    ++spans[span.name].first;
    spans[span.name].second += span.end - span.begin;
  }
  json host = json::array();
  for (const auto& [name, sum] : spans) {
    host.push_back({{"name", name}, {"count", sum.first}, {"us", Microseconds(sum.second)}});
  }
  json value = {{"job", rank_.job},
                {"rank", rank_.rank},
                {"device", rank_.device},
                {"first_step", first_step_},
                {"steps", steps_},
                {"us_per_step", Microseconds(ended_ - began_) / steps},
                {"kernel_us_per_step", Microseconds(total) / steps},
                {"ceilings",
                 {{"memory_bytes_per_s", rank_.ceilings.memory_bytes},
                  {"fp32_flops_per_s", rank_.ceilings.fp32_flops},
                  {"tf32_flops_per_s", rank_.ceilings.tf32_flops},
                  {"bf16_flops_per_s", rank_.ceilings.bf16_flops}}},
                {"kernels", std::move(kernels)},
                {"host", std::move(host)}};
  if (!note_.empty()) value["note"] = note_;
  return Dump(value);
}

}  // namespace weft
