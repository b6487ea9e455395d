// weft sample: text from a trained model, by a sampling job.
#include "google/protobuf/util/json_util.h"

#include "client/cli/exit_code.h"
#include "client/cli/follow.h"
#include "client/cli/summary.h"
#include "client/cli/verb.h"
#include "fabric/ckpt/manifest.h"
#include "fabric/wire/config_file.h"

namespace weft::cli {
namespace {

struct SampleFlags {
  std::string checkpoint;
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  uint64_t seed = 0;
};

// The job that wrote a checkpoint.
StatusOr<v1::JobSpec> SpecOf(const ckpt::CheckpointInfo& info) {
  v1::JobSpec spec;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(info.manifest.spec_json, &spec, options);
  if (!parsed.ok()) {
    return DataLoss(info.path,
                    ": the manifest's job cannot be read: ", std::string(parsed.message()),
                    "; use another checkpoint");
  }
  return spec;
}

StatusOr<v1::JobSpec> SamplingJob(Session& session, const SampleFlags& flags) {
  std::vector<std::string> skipped;
  const std::string folder = AbsolutePath(flags.checkpoint);
  auto info = ckpt::NewestVerified(folder, &skipped);
  for (const std::string& damaged : skipped) {
    session.printer.TalkLine(absl::StrCat("skipped a damaged checkpoint: ", damaged));
  }
  if (info.status().code() == absl::StatusCode::kNotFound) {
    return NotFound("no verified checkpoint in ", folder,
                    "; name a job's folder, such as runs/shakespeare");
  }
  if (!info.ok()) return info.status();
  ASSIGN_OR_RETURN(const v1::JobSpec trained, SpecOf(*info));
  v1::JobSpec spec;
  spec.set_name("sample");
  *spec.mutable_model() = trained.model();
  *spec.mutable_data() = trained.data();
  v1::SampleSpec* sample = spec.mutable_sample();
  sample->set_checkpoint(info->path);
  sample->set_prompt(flags.prompt);
  sample->set_tokens(flags.tokens);
  sample->set_temperature(flags.temperature);
  sample->set_top_k(flags.top_k);
  sample->set_seed(flags.seed);
  return spec;
}

StatusOr<v1::Job> RunOn(Session& session, Client& client, const v1::JobSpec& spec,
                        FollowOptions options) {
  options.progress = false;
  ASSIGN_OR_RETURN(const v1::Job job, client.Submit(spec, MakeRequestId()));
  return Follow(session, client, job.id(), options);
}

StatusOr<v1::Job> RunSample(Session& session, const v1::JobSpec& spec) {
  if (NamesCoordinator(session)) {
    ASSIGN_OR_RETURN(const auto client, Connect(session));
    return RunOn(session, *client, spec, {});
  }
  ASSIGN_OR_RETURN(const auto cluster, StartCluster(session, 1, ""));
  session.interrupts.SetHandler([&cluster](int) { cluster->client().StopStreams(); });
  FollowOptions options;
  options.away_limit = absl::Seconds(10);
  options.check = [&cluster] { return cluster->Check(); };
  auto job = RunOn(session, cluster->client(), spec, options);
  session.interrupts.SetHandler([](int) {});
  return job;
}

}  // namespace

VerbBody DeclareSample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  app.add_option("checkpoint", flags->checkpoint,
                 "A job's checkpoint folder (the newest is used), or one checkpoint")
      ->required()
      ->type_name("CHECKPOINT");
  app.add_option("--prompt", flags->prompt, "What the text begins with; default: a new line")
      ->type_name("TEXT");
  app.add_option("--tokens", flags->tokens, "How many to write")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--temperature", flags->temperature, "0: the likeliest each time")
      ->capture_default_str()
      ->type_name("X")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-k", flags->top_k, "Choose among the K likeliest; 0: among all")
      ->capture_default_str()
      ->type_name("K")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", flags->seed, "Another seed, another text")
      ->capture_default_str()
      ->type_name("S");
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const v1::JobSpec spec, SamplingJob(session, *flags));
    ASSIGN_OR_RETURN(const v1::Job job, RunSample(session, spec));
    if (session.printer.json()) {
      session.printer.Line(wire::MessageToJson(job));
    } else if (job.state() == v1::JOB_STATE_DONE) {
      session.printer.Line(job.result().text());
    } else {
      session.printer.Talk(SummaryText(job));
    }
    return ExitCodeOf(job.state());
  };
}

}  // namespace weft::cli
