#include "worker/exec/train_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/base/hash.h"

namespace weft {
namespace {

constexpr char kModelFile[] = "model.safetensors";
constexpr char kOptimizerFile[] = "optimizer.safetensors";
constexpr char kHistoryFile[] = "history.safetensors";
constexpr char kTokensFile[] = "tokens.safetensors";
constexpr char kLosses[] = "losses";

std::vector<const ParameterSlot*> ByName(const Program& program) {
  std::vector<const ParameterSlot*> slots;
  for (const ParameterSlot& p : program.parameters) slots.push_back(&p);
  std::sort(slots.begin(), slots.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  return slots;
}

std::string Digest(const Program& program, const float* param,
                   const std::vector<const float*>& states, absl::Span<const float> losses) {
  Sha256 sha;
  const std::vector<const ParameterSlot*> slots = ByName(program);
  const auto update = [&](const float* flat) {
    for (const ParameterSlot* p : slots) {
      sha.Update(flat + p->offset, static_cast<size_t>(p->shape.elements()) * sizeof(float));
    }
  };
  update(param);
  for (const float* state : states) update(state);
  sha.Update(losses.data(), losses.size() * sizeof(float));
  return sha.FinishHex();
}

Status CopyTensor(const ckpt::Safetensors& file, const std::string& name, const Shape& shape,
                  float* into) {
  const ckpt::Safetensors::Entry* entry = file.Find(name);
  if (entry == nullptr) return FailedPrecondition("the checkpoint has no tensor '", name, "'");
  const TensorMeta want{DType::kF32, shape};
  if (!(entry->meta == want)) {
    return FailedPrecondition("tensor '", name, "' is ", ToString(entry->meta),
                              " in the checkpoint, ", ToString(want), " in the model");
  }
  std::memcpy(into, file.data(*entry), static_cast<size_t>(want.bytes()));
  return absl::OkStatus();
}

std::string StateTensor(const std::string& state, const std::string& parameter) {
  return absl::StrCat(state, ".", parameter);
}

}  // namespace

std::string StateDigest(const Program& program, const HostState& host,
                        absl::Span<const float> losses) {
  std::vector<const float*> states;
  for (size_t i = 0; i < program.states.size(); ++i) states.push_back(host.state(i));
  return Digest(program, host.param(), states, losses);
}

Status RestoreParameters(const ckpt::CheckpointInfo& info, const Program& program, float* flat) {
  ASSIGN_OR_RETURN(const ckpt::Safetensors model,
                   ckpt::Safetensors::Load(absl::StrCat(info.path, "/", kModelFile)));
  for (const ParameterSlot& p : program.parameters) {
    RETURN_IF_ERROR(Annotate(CopyTensor(model, p.name, p.shape, flat + p.offset), info.path));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<float>> RestoreState(const ckpt::CheckpointInfo& info, const ExecSpec& spec,
                                          HostState* host) {
  const Program& program = spec.plan.program;
  if (!spec.any_numerics && info.manifest.numerics_json != spec.numerics_json) {
    return FailedPrecondition(
        info.path, " was made with numerics ", info.manifest.numerics_json, "; this plan has ",
        spec.numerics_json,
        "; go on with the checkpoint's device, instruction_set and libraries, "
        "start anew, or set determinism: fast");
  }
  if (info.manifest.step > spec.steps) {
    return FailedPrecondition(info.path, " has ", info.manifest.step, " steps, train.steps is ",
                              spec.steps, "; raise it or start anew");
  }
  RETURN_IF_ERROR(RestoreParameters(info, program, host->param()));
  ASSIGN_OR_RETURN(const ckpt::Safetensors history,
                   ckpt::Safetensors::Load(absl::StrCat(info.path, "/", kHistoryFile)));
  std::vector<float> losses(static_cast<size_t>(info.manifest.step));
  RETURN_IF_ERROR(CopyTensor(history, kLosses, Shape{info.manifest.step}, losses.data()));
  if (program.states.empty()) return losses;
  ASSIGN_OR_RETURN(const ckpt::Safetensors optimizer,
                   ckpt::Safetensors::Load(absl::StrCat(info.path, "/", kOptimizerFile)));
  for (size_t i = 0; i < program.states.size(); ++i) {
    for (const ParameterSlot& p : program.parameters) {
      RETURN_IF_ERROR(Annotate(CopyTensor(optimizer, StateTensor(program.states[i], p.name),
                                          p.shape, host->state(i) + p.offset),
                               info.path));
    }
  }
  return losses;
}

StatusOr<std::optional<data::TokenTable>> TokenTableOf(const ckpt::CheckpointInfo& info) {
  const auto& files = info.manifest.files;
  if (std::none_of(files.begin(), files.end(),
                   [](const ckpt::ManifestFile& f) { return f.name == kTokensFile; })) {
    return std::optional<data::TokenTable>();
  }
  const std::string path = absl::StrCat(info.path, "/", kTokensFile);
  ASSIGN_OR_RETURN(const ckpt::Safetensors file, ckpt::Safetensors::Load(path));
  for (const auto& [name, entry] : file.entries()) {
    if (entry.meta.dtype != DType::kI32) break;
    const auto* numbers = static_cast<const int32_t*>(file.data(entry));
    return data::TokenTable{name, {numbers, numbers + entry.meta.elements()}};
  }
  return DataLoss("'", path, "' has no table of tokens");
}

struct CheckpointWriter::Snapshot {
  int64_t step = 0;
  std::vector<float> param;
  std::vector<std::vector<float>> states;
  std::vector<float> losses;
};

CheckpointWriter::CheckpointWriter(const ExecSpec* spec) : spec_(spec) {}
CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

Status CheckpointWriter::Save(int64_t step, const HostState& host, absl::Span<const float> losses) {
  RETURN_IF_ERROR(Wait());
  const Program& program = spec_->plan.program;
  const size_t flat = static_cast<size_t>(program.flat_elements);
  // Kept between checkpoints, so that the copy is all that the training loop pays.
  if (snapshot_ == nullptr) snapshot_ = std::make_unique<Snapshot>();
  snapshot_->step = step;
  snapshot_->param.assign(host.param(), host.param() + flat);
  snapshot_->states.resize(program.states.size());
  for (size_t i = 0; i < snapshot_->states.size(); ++i) {
    snapshot_->states[i].assign(host.state(i), host.state(i) + flat);
  }
  snapshot_->losses.assign(losses.begin(), losses.end());
  thread_ = std::thread([this] { status_ = Write(*snapshot_); });
  return absl::OkStatus();
}

Status CheckpointWriter::Wait() {
  if (!thread_.joinable()) return absl::OkStatus();
  thread_.join();
  RETURN_IF_ERROR(status_);
  written_.push_back(running_);
  return absl::OkStatus();
}

std::vector<CheckpointWriter::Written> CheckpointWriter::TakeWritten() {
  return std::exchange(written_, {});
}

Status CheckpointWriter::Write(const Snapshot& snapshot) {
  const Program& program = spec_->plan.program;
  std::vector<const float*> states;
  for (const auto& state : snapshot.states) states.push_back(state.data());
  ckpt::Manifest manifest;
  manifest.step = snapshot.step;
  manifest.job = spec_->job_name;
  manifest.spec_json = spec_->spec_json;
  manifest.numerics_json = spec_->numerics_json;
  manifest.state_digest = Digest(program, snapshot.param.data(), states, snapshot.losses);

  std::vector<ckpt::CheckpointFile> files = {{kModelFile, {}}};
  for (const ParameterSlot* p : ByName(program)) {
    files[0].tensors.push_back(
        {p->name, {DType::kF32, p->shape}, snapshot.param.data() + p->offset});
  }
  if (!states.empty()) {
    files.push_back({kOptimizerFile, {}});
    for (size_t i = 0; i < states.size(); ++i) {
      for (const ParameterSlot* p : ByName(program)) {
        files.back().tensors.push_back({StateTensor(program.states[i], p->name),
                                        {DType::kF32, p->shape},
                                        states[i] + p->offset});
      }
    }
  }
  const int64_t steps = static_cast<int64_t>(snapshot.losses.size());
  files.push_back({kHistoryFile, {{kLosses, {DType::kF32, {steps}}, snapshot.losses.data()}}});
  if (!table_.name.empty()) {
    const auto numbers = static_cast<int64_t>(table_.numbers.size());
    files.push_back(
        {kTokensFile, {{table_.name, {DType::kI32, {numbers}}, table_.numbers.data()}}});
  }
  ASSIGN_OR_RETURN(const std::string path,
                   ckpt::WriteCheckpoint(spec_->checkpoint.path, manifest, files));
  running_ = {snapshot.step, path, manifest.state_digest};
  return ckpt::PruneCheckpoints(spec_->checkpoint.path, spec_->checkpoint.keep);
}

}  // namespace weft
