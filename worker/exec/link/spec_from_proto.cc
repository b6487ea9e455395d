#include "worker/exec/link/spec_from_proto.h"

#include <string>
#include <utility>
#include <variant>

#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

#include "fabric/graph/program_check.h"
#include "fabric/opset/opset.h"
#include "fabric/wire/convert_plan.h"

namespace weft {
namespace {

StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json);
  if (!status.ok())
    return Internal("cannot write ", message.GetTypeName(), " as JSON: ", status.ToString());
  // Proto maps come in any order, and what is compared must not.
  return nlohmann::json::parse(json).dump();
}

data::TextOptions TextFromProto(const v1::TextData& proto) {
  data::TextOptions text;
  text.path = proto.path();
  if (proto.tokens() == v1::TOKENS_CHARACTERS) text.tokens = data::TextTokens::kCharacters;
  if (proto.tokens() == v1::TOKENS_BPE) text.tokens = data::TextTokens::kBpe;
  text.bpe_vocab = proto.vocab();
  if (proto.has_validation()) text.validation = proto.validation();
  return text;
}

// How many tokens a row has and how many there are, as the model says. A client's graph says by its
// input how long a row is; its own lookups bound the ids.
struct TokenSizes {
  int64_t context = 0;
  int64_t vocab = 0;
};
StatusOr<TokenSizes> TokenSizesOf(const v1::ModelSpec& model, const Program& program) {
  if (model.has_gpt()) return TokenSizes{model.gpt().context(), model.gpt().vocab()};
  for (const InputSlot& slot : program.inputs) {
    if (slot.name == "tokens" && slot.meta.shape.rank() == 2) {
      return TokenSizes{slot.meta.shape.dim(1), INT32_MAX};
    }
  }
  return InvalidArgument(
      "model.graph: has no input 'tokens' [samples, context] that the data could fill");
}

Status FillData(const v1::JobSpec& job, ExecSpec* spec) {
  const v1::DataSpec& proto = job.data();
  const uint64_t seed = job.train().seed();
  if (proto.has_cifar10()) {
    spec->data = data::Cifar10Options{proto.cifar10().path(), proto.cifar10().validation(), seed};
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const TokenSizes sizes, TokenSizesOf(job.model(), spec->plan.program));
  if (proto.has_text()) {
    data::TextOptions text = TextFromProto(proto.text());
    text.context = sizes.context;
    text.vocab = sizes.vocab;
    text.seed = seed;
    spec->data = text;
  } else if (proto.has_reverse()) {
    data::ReverseOptions reverse;
    reverse.symbols = proto.reverse().symbols();
    reverse.max_length = proto.reverse().max_length();
    reverse.eval_samples = proto.reverse().eval_samples();
    reverse.context = sizes.context;
    reverse.seed = seed;
    spec->data = reverse;
  } else if (proto.has_tokens()) {
    data::TokenOptions tokens;
    tokens.path = proto.tokens().path();
    tokens.validation = proto.tokens().validation();
    tokens.eval_samples = proto.tokens().eval_samples();
    tokens.context = sizes.context;
    tokens.vocab = sizes.vocab;
    tokens.seed = seed;
    spec->data = tokens;
  } else {
    return InvalidArgument("data: the job has none");
  }
  return absl::OkStatus();
}

SampleSettings SampleFromProto(const v1::JobSpec& job) {
  const v1::SampleSpec& proto = job.sample();
  SampleSettings sample;
  sample.checkpoint = proto.checkpoint();
  sample.prompt = proto.prompt();
  sample.tokens = proto.tokens();
  sample.temperature = proto.temperature();
  sample.top_k = proto.top_k();
  sample.seed = proto.seed();
  sample.text = TextFromProto(job.data().text());
  return sample;
}

}  // namespace

StatusOr<ExecSpec> SpecFromProto(const v1::MemberSpec& proto) {
  ExecSpec spec;
  const v1::JobSpec& job = proto.spec();
  spec.job = JobId(proto.member().job());
  spec.generation = Generation(proto.member().generation());
  spec.rank = proto.member().rank();
  spec.job_name = job.name();
  ASSIGN_OR_RETURN(spec.spec_json, ToJson(job));
  ASSIGN_OR_RETURN(spec.numerics_json, ToJson(proto.plan().numerics()));
  ASSIGN_OR_RETURN(spec.plan, wire::FromProto(proto.plan()));
  RETURN_IF_ERROR(Annotate(ValidateProgram(BuiltinOpSet(), spec.plan.program), "plan.program"));
  if (spec.rank < 0 || spec.rank >= spec.plan.ranks ||
      spec.plan.shares.size() != static_cast<size_t>(spec.plan.ranks)) {
    return InvalidArgument("member.rank: ", spec.rank, " does not fit a plan of ", spec.plan.ranks,
                           " ranks and ", spec.plan.shares.size(), " shares");
  }
  spec.any_numerics = job.determinism() == v1::DETERMINISM_FAST;
  spec.steps = job.train().steps();
  spec.seed = job.train().seed();
  spec.checkpoint.path = proto.checkpoint_path();
  spec.checkpoint.every = job.checkpoint().every();
  spec.checkpoint.keep = job.checkpoint().keep() > 0 ? job.checkpoint().keep() : 2;
  spec.checkpoint.resume = proto.resume();
  spec.eval_every = job.eval().every();
  spec.threads = proto.threads();
  spec.device_index = proto.device_index();
  if (job.has_profile()) {
    ProfileSettings profile;
    if (job.profile().steps() > 0) profile.steps = job.profile().steps();
    if (job.profile().after() > 0) profile.after = job.profile().after();
    profile.folder = absl::StrCat(proto.checkpoint_path(), "/profile");
    spec.profile = profile;
  }
  if (job.has_sample()) {
    spec.sample = SampleFromProto(job);
  } else {
    RETURN_IF_ERROR(FillData(job, &spec));
  }
  return spec;
}

v1::JobResult ToProto(const RunResult& result) {
  v1::JobResult proto;
  proto.set_steps(result.steps);
  proto.set_first_loss(result.first_loss);
  proto.set_final_loss(result.final_loss);
  if (result.eval.targets > 0) {
    proto.mutable_eval()->set_step(result.eval.step);
    proto.mutable_eval()->set_loss(result.eval.loss);
    proto.mutable_eval()->set_accuracy(result.eval.accuracy);
    proto.mutable_eval()->set_targets(result.eval.targets);
  }
  proto.set_median_step_ms(result.median_step_ms);
  proto.set_peak_memory_bytes(result.peak_memory_bytes);
  proto.set_state_digest(result.state_digest);
  proto.set_checkpoint(result.checkpoint);
  proto.set_text(result.text);
  proto.set_train_seconds(result.train_seconds);
  proto.set_tokens_per_step(result.tokens_per_step);
  proto.mutable_losses()->Add(result.losses.begin(), result.losses.end());
  proto.set_losses_every(result.losses_every);
  proto.set_profile(result.profile);
  return proto;
}

namespace {

v1::RankCounters ToProto(const CountersReport& counters) {
  v1::RankCounters proto;
  proto.set_step(counters.step);
  proto.set_pool_bytes(counters.runner.pool_bytes);
  proto.set_arena_bytes(counters.runner.arena_bytes);
  proto.set_scratch_bytes(counters.runner.scratch_bytes);
  proto.set_pinned_bytes(counters.runner.pinned_bytes);
  proto.set_device_used_bytes(counters.device_used_bytes);
  proto.set_host_peak_bytes(counters.host_peak_bytes);
  proto.set_graph_nodes(counters.runner.graph_nodes);
  proto.set_captures(counters.runner.captures);
  return proto;
}

}  // namespace

v1::ExecutorReport ToProto(const Report& report) {
  v1::ExecutorReport proto;
  if (const auto* progress = std::get_if<ProgressReport>(&report)) {
    v1::StepProgress* p = proto.mutable_progress();
    p->set_step(progress->step);
    p->set_of(progress->of);
    p->set_loss(progress->loss);
    p->set_step_ms(progress->step_ms);
    p->set_tokens_per_s(progress->tokens_per_s);
    for (const float loss : progress->losses) p->add_losses(loss);
  } else if (const auto* eval = std::get_if<EvalReport>(&report)) {
    v1::EvalResult* e = proto.mutable_eval();
    e->set_step(eval->step);
    e->set_loss(eval->loss);
    e->set_accuracy(eval->accuracy);
    e->set_targets(eval->targets);
  } else if (const auto* written = std::get_if<CheckpointReport>(&report)) {
    v1::CheckpointWritten* c = proto.mutable_checkpoint();
    c->set_step(written->step);
    c->set_path(written->path);
    c->set_state_digest(written->digest);
  } else if (const auto* started = std::get_if<StartUpReport>(&report)) {
    for (const StartUpClock::Phase& phase : started->phases) {
      v1::PhaseTime* p = proto.mutable_startup()->add_phases();
      p->set_name(phase.name);
      p->set_ms(absl::ToDoubleMilliseconds(phase.time));
    }
  } else if (const auto* counters = std::get_if<CountersReport>(&report)) {
    *proto.mutable_counters() = ToProto(*counters);
  }
  return proto;
}

}  // namespace weft
