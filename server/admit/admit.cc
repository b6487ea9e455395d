#include "server/admit/admit.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"

#include "fabric/base/suggest.h"
#include "fabric/mesh/lanes.h"
#include "fabric/wire/enum_name.h"
#include "server/admit/model_check.h"
#include "server/admit/problems.h"

namespace weft::admit {
namespace {

constexpr size_t kMostNameBytes = 63;
constexpr size_t kMostPathBytes = 4096;
constexpr int64_t kReverseExtra = 4;  // padding, begin, separator, end
constexpr int64_t kBytes = 256, kMostBpeTokens = 65536;

class Admission {
 public:
  Admission(const OpSet& ops, const v1::JobSpec& spec, const AdmitLimits& limits)
      : ops_(ops), limits_(limits), spec_(spec) {}

  StatusOr<v1::JobSpec> Run() {
    CheckName();
    CheckRanks();
    if (spec_.has_sample()) {
      CheckSample();
    } else {
      CheckTrain();
      CheckData();
    }
    CheckRest();
    FillVocab();
    CheckModel(ops_, limits_.graph, &spec_, &problems_);
    RETURN_IF_ERROR(problems_.ToStatus());
    return std::move(spec_);
  }

 private:
  void CheckName() {
    const std::string& name = spec_.name();
    const bool fits = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    if (name.empty()) {
      problems_.Add("name", "is missing; it names the checkpoint folder");
    } else if (!fits || name.size() > kMostNameBytes || name.front() == '-') {
      problems_.Add("name",
                    "wants at most 63 characters of a-z, 0-9 and '-', not beginning with '-'");
    }
  }

  // An enum number that this build does not know is refused; 0 becomes `fallback`.
  template <typename Enum, typename Set>
  void FillEnum(const std::string& path, Enum value, bool known, Enum fallback, Set set) {
    if (!known) return problems_.Add(path, "there is no choice ", static_cast<int>(value));
    if (static_cast<int>(value) == 0) set(fallback);
  }

  void CheckRanks() {
    v1::RanksSpec* ranks = spec_.mutable_ranks();
    if (ranks->min() == 0) ranks->set_min(1);
    if (ranks->max() == 0) ranks->set_max(ranks->min());
    const bool least = problems_.Within("ranks.min", ranks->min(), 1, limits_.ranks);
    const bool most = problems_.Within("ranks.max", ranks->max(), 1, limits_.ranks);
    if (least && most && ranks->max() < ranks->min()) {
      problems_.Add("ranks.max", "is ", ranks->max(), ", below ranks.min ", ranks->min());
    }
    lanes_given_ = spec_.lanes() != 0;
    if (!lanes_given_) spec_.set_lanes(std::max(1, ranks->max()));
    if (!problems_.Within("lanes", spec_.lanes(), 1, kMostLanes)) return;
    if (lanes_given_ && spec_.lanes() < ranks->max()) {
      problems_.Add("lanes", "is ", spec_.lanes(), ", below ranks.max ", ranks->max(),
                    "; a rank holds whole lanes: use at least ", ranks->max(), " lanes or at most ",
                    spec_.lanes(), " ranks");
    }
  }

  void CheckSample() {
    v1::SampleSpec* sample = spec_.mutable_sample();
    if (spec_.has_train()) problems_.Add("train", "a sampling job has none");
    // What tells the tokens' characters, as the checkpoint's own job has it.
    if (spec_.has_data() && !spec_.data().has_text()) {
      problems_.Add("data", "a sampling job writes text, and this is no text");
    }
    if (spec_.ranks().max() > 1) {
      problems_.Add("ranks.max", "is ", spec_.ranks().max(), ", a sampling job runs on 1 rank");
    }
    if (spec_.lanes() > 1) problems_.Add("lanes", "is ", spec_.lanes(), ", a sampling job has 1");
    if (spec_.device() == "cuda") {
      problems_.Add("device", "is cuda, a sampling job runs on the CPU; leave it out");
    }
    CheckPath("sample.checkpoint", sample->checkpoint());
    if (sample->prompt().empty()) sample->set_prompt("\n");
    if (sample->tokens() == 0) sample->set_tokens(200);
    problems_.Within<int64_t>("sample.tokens", sample->tokens(), 1, limits_.sample_tokens);
    if (!sample->has_temperature()) sample->set_temperature(0.8);
    problems_.AtLeastZero("sample.temperature", sample->temperature());
    problems_.AtLeastZero("sample.top_k", static_cast<double>(sample->top_k()));
  }

  void CheckPath(const std::string& path, const std::string& value) {
    if (value.empty()) return problems_.Add(path, "is missing");
    if (value.size() > kMostPathBytes || value.find('\0') != std::string::npos) {
      problems_.Add(path, "is no path: too long, or with a zero byte");
    }
  }

  void CheckTrain() {
    if (!spec_.has_train()) return problems_.Add("train", "is missing");
    v1::TrainSpec* train = spec_.mutable_train();
    if (train->steps() == 0) {
      problems_.Add("train.steps", "is missing");
    } else {
      problems_.Within<int64_t>("train.steps", train->steps(), 1, limits_.steps);
    }
    CheckBatchSize();
    CheckOptimizer(train->mutable_optimizer());
    CheckSchedule();
    if (train->has_clip_norm()) problems_.AtLeastZero("train.clip_norm", train->clip_norm());
    FillEnum("train.precision", train->precision(), v1::Precision_IsValid(train->precision()),
             v1::PRECISION_FP32, [train](v1::Precision p) { train->set_precision(p); });
    CheckPrecision();
  }

  void CheckPrecision() {
    const v1::Precision precision = spec_.train().precision();
    if (!v1::Precision_IsValid(precision)) return;  // said already
    const std::string name = wire::EnumNameOf(precision);
    if (spec_.train().stochastic_rounding() && precision != v1::PRECISION_BF16) {
      problems_.Add("train.stochastic_rounding", "is of bf16 parameters, and train.precision is ",
                    name, "; set precision: bf16 or leave it out");
    }
    const bool on_cpu =
        spec_.device() == "cpu" || (spec_.device().empty() && !spec_.instruction_set().empty());
    if (on_cpu && precision != v1::PRECISION_FP32) {
      problems_.Add("train.precision", "is ", name, ", which runs on GPUs only, and the job asks ",
                    "for a CPU by its ", spec_.device().empty() ? "instruction_set" : "device",
                    "; set precision: fp32, or device: cuda");
    }
  }

  void CheckBatchSize() {
    const int64_t batch = spec_.train().batch();
    if (batch == 0) return problems_.Add("train.batch", "is missing");
    if (!problems_.Within<int64_t>("train.batch", batch, 1, limits_.batch)) return;
    if (spec_.lanes() < 1 || spec_.lanes() > kMostLanes) return;  // said already
    const Status status = CheckBatch(batch, spec_.lanes());
    if (status.ok()) return;
    problems_.Add("train.batch", status.message(),
                  lanes_given_ ? "" : " (lanes are ranks.max unless set)");
  }

  double LearningRate() const {
    const v1::OptimizerSpec& optimizer = spec_.train().optimizer();
    return optimizer.has_sgd() ? optimizer.sgd().lr() : optimizer.adamw().lr();
  }

  void CheckOptimizer(v1::OptimizerSpec* optimizer) {
    if (optimizer->has_sgd()) {
      problems_.Positive("train.optimizer.sgd.lr", optimizer->sgd().lr());
      if (optimizer->sgd().has_clamp()) {
        problems_.AtLeastZero("train.optimizer.sgd.clamp", optimizer->sgd().clamp());
      }
      return;
    }
    if (!optimizer->has_adamw()) {
      return problems_.Add("train.optimizer", "is missing; choose sgd or adamw");
    }
    v1::AdamW* adamw = optimizer->mutable_adamw();
    const std::string path = "train.optimizer.adamw.";
    problems_.Positive(path + "lr", adamw->lr());
    if (adamw->betas().empty()) {
      adamw->add_betas(0.9);
      adamw->add_betas(0.999);
    }
    if (adamw->betas_size() != 2) {
      problems_.Add(path + "betas", "has ", adamw->betas_size(), " values, wants 2");
    }
    for (const double beta : adamw->betas()) {
      if (!(beta >= 0 && beta < 1))
        problems_.Add(path + "betas", "has ", beta, ", wants 0 <= beta < 1");
    }
    if (!adamw->has_eps()) adamw->set_eps(1e-8);
    problems_.Positive(path + "eps", adamw->eps());
    if (!adamw->has_weight_decay()) adamw->set_weight_decay(0.01);
    problems_.AtLeastZero(path + "weight_decay", adamw->weight_decay());
  }

  void CheckSchedule() {
    v1::ScheduleSpec* schedule = spec_.mutable_train()->mutable_schedule();
    FillEnum("train.schedule.decay", schedule->decay(), v1::Decay_IsValid(schedule->decay()),
             v1::DECAY_CONSTANT, [schedule](v1::Decay d) { schedule->set_decay(d); });
    const int64_t steps = spec_.train().steps();
    if (schedule->warmup() < 0) {
      problems_.Add("train.schedule.warmup", "is ", schedule->warmup(), ", wants a number from 0");
    } else if (schedule->decay() == v1::DECAY_COSINE && steps > 0 && schedule->warmup() >= steps) {
      problems_.Add("train.schedule.warmup", "is ", schedule->warmup(), ", which leaves none of ",
                    steps, " steps for the cosine; lower it or raise train.steps");
    }
    if (!schedule->has_min_lr()) schedule->set_min_lr(0);
    if (problems_.AtLeastZero("train.schedule.min_lr", schedule->min_lr()) && LearningRate() > 0 &&
        schedule->min_lr() > LearningRate()) {
      problems_.Add("train.schedule.min_lr", "is ", schedule->min_lr(),
                    ", above the learning rate ", LearningRate());
    }
  }

  void CheckData() {
    v1::DataSpec* data = spec_.mutable_data();
    switch (data->kind_case()) {
      case v1::DataSpec::kReverse:
        return CheckReverse(data->mutable_reverse());
      case v1::DataSpec::kText:
        return CheckText(data->mutable_text());
      case v1::DataSpec::kTokens:
        return CheckTokens(data->mutable_tokens());
      case v1::DataSpec::kCifar10:
        return CheckCifar10(data->mutable_cifar10());
      case v1::DataSpec::KIND_NOT_SET:
        return problems_.Add("data", "is missing; choose text, tokens, cifar10 or reverse");
    }
  }

  void CheckReverse(v1::ReverseData* reverse) {
    constexpr int64_t kMost = int64_t{1} << 20;
    if (reverse->symbols() == 0) reverse->set_symbols(32);
    if (reverse->max_length() == 0) reverse->set_max_length(16);
    if (reverse->eval_samples() == 0) reverse->set_eval_samples(1000);
    problems_.Within<int64_t>("data.reverse.symbols", reverse->symbols(), 1, kMost);
    problems_.Within<int64_t>("data.reverse.eval_samples", reverse->eval_samples(), 1, kMost);
    if (!problems_.Within<int64_t>("data.reverse.max_length", reverse->max_length(), 1, kMost))
      return;
    const int64_t context = ContextOf(spec_.model());
    if (context > 0 && 2 * reverse->max_length() + 3 > context) {
      problems_.Add("data.reverse.max_length", "is ", reverse->max_length(),
                    ": 2 * max_length + 3 = ", 2 * reverse->max_length() + 3,
                    " tokens do not fit into a context of ", context);
    }
  }

  void CheckText(v1::TextData* text) {
    CheckPath("data.text.path", text->path());
    FillEnum("data.text.tokens", text->tokens(), v1::Tokens_IsValid(text->tokens()),
             v1::TOKENS_BYTES, [text](v1::Tokens t) { text->set_tokens(t); });
    if (!text->has_validation()) text->set_validation(0.1);
    if (!(text->validation() >= 0 && text->validation() < 1)) {
      problems_.Add("data.text.validation", "is ", text->validation(),
                    ", wants 0 <= validation < 1");
    }
    if (text->tokens() != v1::TOKENS_BPE) {
      if (text->vocab() != 0) problems_.Add("data.text.vocab", "is for tokens: bpe alone");
    } else if (text->vocab() == 0) {
      problems_.Add("data.text.vocab", "is missing; with tokens: bpe it says how many to learn");
    } else {
      problems_.Within<int64_t>("data.text.vocab", text->vocab(), kBytes + 1, kMostBpeTokens);
    }
  }

  void CheckTokens(v1::TokenData* tokens) {
    CheckPath("data.tokens.path", tokens->path());
    if (!tokens->validation().empty()) CheckPath("data.tokens.validation", tokens->validation());
    if (tokens->eval_samples() == 0) tokens->set_eval_samples(1000);
    problems_.Within<int64_t>("data.tokens.eval_samples", tokens->eval_samples(), 1,
                              int64_t{1} << 30);
  }

  void CheckCifar10(v1::Cifar10Data* cifar10) {
    CheckPath("data.cifar10.path", cifar10->path());
    if (!cifar10->validation().empty()) CheckPath("data.cifar10.validation", cifar10->validation());
    if (!cifar10->has_augment()) cifar10->set_augment(true);
  }

  // The vocabulary that the data needs; 0: not known here.
  int64_t DataVocab() const {
    const v1::DataSpec& data = spec_.data();
    if (data.has_reverse()) return data.reverse().symbols() + kReverseExtra;
    if (data.has_text() && data.text().tokens() == v1::TOKENS_BYTES) return kBytes;
    if (data.has_text() && data.text().tokens() == v1::TOKENS_BPE) return data.text().vocab();
    return 0;
  }

  void FillVocab() {
    if (!spec_.model().has_gpt() || spec_.data().has_cifar10()) return;
    v1::GptModel* gpt = spec_.mutable_model()->mutable_gpt();
    const int64_t needed = DataVocab();
    if (gpt->vocab() == 0 && needed > 0) gpt->set_vocab(needed);
    if (gpt->vocab() == 0) {
      if (spec_.data().has_tokens()) {
        problems_.Add("model.gpt.vocab",
                      "is missing, and token files do not tell: set it above their greatest id "
                      "(GPT-2's: 50257, or 50304 for speed)");
      } else {
        problems_.Add(
            "model.gpt.vocab",
            "is missing, and only the file can tell: set it to the number of distinct characters "
            "(`weft` fills it in from the file)");
      }
      gpt->set_vocab(1);  // so that the other sizes are checked all the same
    } else if (gpt->vocab() > 0 && gpt->vocab() < needed) {
      problems_.Add("model.gpt.vocab", "is ", gpt->vocab(), ", the data has ", needed, " tokens");
    }
  }

  void CheckRest() {
    FillEnum("reduce", spec_.reduce(), v1::ReduceMode_IsValid(spec_.reduce()),
             v1::REDUCE_MODE_ORDERED, [this](v1::ReduceMode m) { spec_.set_reduce(m); });
    FillEnum("transport", spec_.transport(), v1::Transport_IsValid(spec_.transport()),
             v1::TRANSPORT_AUTO, [this](v1::Transport t) { spec_.set_transport(t); });
    v1::CheckpointSpec* checkpoint = spec_.mutable_checkpoint();
    FillEnum("checkpoint.resume", checkpoint->resume(), v1::Resume_IsValid(checkpoint->resume()),
             v1::RESUME_NEVER, [checkpoint](v1::Resume r) { checkpoint->set_resume(r); });
    if (checkpoint->keep() == 0) checkpoint->set_keep(2);
    problems_.Within("checkpoint.keep", checkpoint->keep(), 1, 1'000'000);
    problems_.AtLeastZero("checkpoint.every", static_cast<double>(checkpoint->every()));
    if (!checkpoint->path().empty()) CheckPath("checkpoint.path", checkpoint->path());
    problems_.AtLeastZero("eval.every", static_cast<double>(spec_.mutable_eval()->every()));
    problems_.Within("threads", spec_.threads(), 0, limits_.threads);
    FillEnum("determinism", spec_.determinism(), v1::Determinism_IsValid(spec_.determinism()),
             v1::DETERMINISM_BITWISE, [this](v1::Determinism d) { spec_.set_determinism(d); });
    CheckProfile();
    CheckDevice();
  }

  void CheckProfile() {
    if (!spec_.has_profile()) return;
    constexpr int64_t kMostSteps = 1000;
    v1::ProfileSpec* profile = spec_.mutable_profile();
    if (spec_.has_sample()) problems_.Add("profile", "is of steps, and a sampling job has none");
    if (profile->steps() == 0) profile->set_steps(5);
    if (profile->after() == 0) profile->set_after(5);
    problems_.Within("profile.steps", profile->steps(), int64_t{1}, kMostSteps);
    problems_.AtLeastZero("profile.after", static_cast<double>(profile->after()));
  }

  void CheckDevice() {
    const std::string& device = spec_.device();
    if (!device.empty() && device != "cpu" && device != "cuda") {
      problems_.Add("device", "there is no '", device.substr(0, 40), "'; choose cpu or cuda");
    }
    const std::vector<std::string> sets = {"avx512", "avx2", "sse2"};
    const std::string& set = spec_.instruction_set();
    if (!set.empty() && std::find(sets.begin(), sets.end(), set) == sets.end()) {
      problems_.Add("instruction_set", "there is no '", set.substr(0, 40), "'",
                    DidYouMean(set.substr(0, 40), sets), "; choose avx512, avx2 or sse2");
    } else if (!set.empty() && device == "cuda") {
      problems_.Add("instruction_set", "is of a CPU, and device is cuda; leave one of them out");
    }
  }

  const OpSet& ops_;
  const AdmitLimits& limits_;
  v1::JobSpec spec_;
  bool lanes_given_ = false;
  Problems problems_;
};

}  // namespace

StatusOr<v1::JobSpec> Admit(const OpSet& ops, const v1::JobSpec& spec, const AdmitLimits& limits) {
  const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes > limits.spec_bytes) {
    return InvalidArgument("the job has ", bytes, " bytes, the limit is ", limits.spec_bytes);
  }
  return Admission(ops, spec, limits).Run();
}

}  // namespace weft::admit
