#include "client/job_file.h"

#include <glob.h>
#include <sys/stat.h>

#include <bitset>
#include <filesystem>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "fabric/ckpt/atomic_file.h"
#include "fabric/wire/config_file.h"

namespace weft {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr int64_t kMaxTextBytes = int64_t{4} << 30;

// The code point at `*at`, which moves behind it; false when those bytes are not UTF-8 (overlong
// forms, surrogates and numbers above the last code point are not).
bool NextCodePoint(absl::string_view text, size_t* at, char32_t* point) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(*at);
  if (first < 0x80) {
    *point = first;
    ++*at;
    return true;
  }
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  if (first < 0xC2 || first > 0xF4 || *at + static_cast<size_t>(more) >= text.size()) return false;
  char32_t value = first & (0x3F >> more);
  for (int k = 1; k <= more; ++k) {
    const unsigned char next = byte(*at + static_cast<size_t>(k));
    if ((next & 0xC0) != 0x80) return false;
    value = (value << 6) | (next & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (value < kLeast[more] || value > kLastCodePoint || (value >= 0xD800 && value < 0xE000)) {
    return false;
  }
  *point = value;
  *at += static_cast<size_t>(more) + 1;
  return true;
}

// The last setting that wrote `field`, or nullptr.
const std::string* SettingOf(absl::string_view field, const std::vector<std::string>& settings) {
  for (auto setting = settings.rbegin(); setting != settings.rend(); ++setting) {
    const absl::string_view key = absl::string_view(*setting).substr(0, setting->find('='));
    if (field == key || absl::StartsWith(field, absl::StrCat(key, "."))) return &*setting;
  }
  return nullptr;
}

// Where a field's value came from: the place's name, and the folder that its relative path is meant
// from.
struct Origin {
  std::string where;
  std::filesystem::path folder;
  std::string folder_name;
};

Origin OriginOf(absl::string_view field, const JobFile& job, const std::filesystem::path& folder) {
  if (SettingOf(field, job.settings) != nullptr) {
    return {job.Where(field), std::filesystem::current_path(), "the current folder"};
  }
  return {job.Where(field), folder, "the job file's folder"};
}

// Makes `*path` absolute.
void Resolve(const Origin& origin, std::string* path) {
  if (path->empty()) return;
  *path = (origin.folder / *path).lexically_normal().string();
}

// `path` is `written` made absolute.
Status NoFile(const Origin& origin, absl::string_view field, const std::string& written,
              const std::string& path, absl::string_view what) {
  return NotFound(
      origin.where, field, ": no file '", written, "'",
      written == path ? "" : absl::StrCat(" (", path, ", from ", origin.folder_name, ")"),
      "; correct the path, or name ", what, " with --set ", field, "=FILE");
}

Status CheckTextFile(const Origin& origin, const std::string& written, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return NoFile(origin, "data.text.path", written, path, "the text");
  }
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument(origin.where, "data.text.path: ", path,
                           " is no plain file; name one text file");
  }
  if (info.st_size == 0) {
    return InvalidArgument(origin.where, "data.text.path: ", path,
                           " is empty; name a text to train on");
  }
  return absl::OkStatus();
}

// Counts the vocabulary of a character model, or checks the one that the job names.
Status SettleVocabulary(const std::string& text_at, const std::string& vocab_at,
                        v1::JobSpec* spec) {
  const std::string& path = spec->data().text().path();
  ASSIGN_OR_RETURN(const std::string text, ckpt::ReadFile(path, kMaxTextBytes));
  const auto characters = CountCharacters(text);
  if (!characters.ok()) {
    return InvalidArgument(text_at, "data.text.path: ", path, ": ", characters.status().message(),
                           "; convert it to UTF-8 or write data.text.tokens: bytes");
  }
  v1::GptModel* model = spec->mutable_model()->mutable_gpt();
  if (model->vocab() == 0) {
    model->set_vocab(*characters);
  } else if (model->vocab() < *characters) {
    return InvalidArgument(vocab_at, "model.gpt.vocab: ", model->vocab(), " is too small for the ",
                           *characters, " distinct characters of ", path,
                           "; leave it out or write at least ", *characters);
  }
  return absl::OkStatus();
}

// Makes `*path`, a pattern of files (or a folder), absolute, and checks that it names something.
Status SettleFiles(const std::string& field, const JobFile& job,
                   const std::filesystem::path& folder, std::string* path) {
  if (path->empty()) return absl::OkStatus();
  const Origin origin = OriginOf(field, job, folder);
  const std::string written = *path;
  Resolve(origin, path);
  glob_t found = {};
  const absl::Cleanup freer = [&found] { globfree(&found); };
  if (glob(path->c_str(), GLOB_BRACE | GLOB_NOSORT, nullptr, &found) == 0) return absl::OkStatus();
  return NoFile(origin, field, written, *path, "the files");
}

Status SettleText(const std::filesystem::path& folder, JobFile* job) {
  v1::TextData* text = job->spec.mutable_data()->mutable_text();
  const Origin origin = OriginOf("data.text.path", *job, folder);
  if (text->path().empty()) {
    return InvalidArgument(origin.where,
                           "data.text.path: no value; name the text file to train on");
  }
  const std::string written = text->path();
  Resolve(origin, text->mutable_path());
  RETURN_IF_ERROR(CheckTextFile(origin, written, text->path()));
  if (text->tokens() != v1::TOKENS_CHARACTERS || !job->spec.model().has_gpt()) {
    return absl::OkStatus();
  }
  return SettleVocabulary(origin.where, job->Where("model.gpt.vocab"), &job->spec);
}

Status SettleData(const std::filesystem::path& folder, JobFile* job) {
  v1::DataSpec* data = job->spec.mutable_data();
  if (data->has_text()) return SettleText(folder, job);
  if (data->has_tokens()) {
    v1::TokenData* tokens = data->mutable_tokens();
    RETURN_IF_ERROR(SettleFiles("data.tokens.path", *job, folder, tokens->mutable_path()));
    return SettleFiles("data.tokens.validation", *job, folder, tokens->mutable_validation());
  }
  if (data->has_cifar10()) {
    v1::Cifar10Data* images = data->mutable_cifar10();
    RETURN_IF_ERROR(SettleFiles("data.cifar10.path", *job, folder, images->mutable_path()));
    return SettleFiles("data.cifar10.validation", *job, folder, images->mutable_validation());
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<int64_t> CountCharacters(absl::string_view text) {
  const auto seen = std::make_unique<std::bitset<kLastCodePoint + 1>>();
  for (size_t at = 0; at < text.size();) {
    char32_t point = 0;
    if (!NextCodePoint(text, &at, &point)) {
      return InvalidArgument("not UTF-8 at byte ", at);
    }
    seen->set(point);
  }
  return static_cast<int64_t>(seen->count());
}

std::string JobFile::Where(absl::string_view field_path) const {
  const std::string* setting = SettingOf(field_path, settings);
  return setting == nullptr ? positions.Where(field_path) : absl::StrCat("--set ", *setting, ": ");
}

Status JobFile::Locate(const Status& status) const {
  if (status.code() != absl::StatusCode::kInvalidArgument) return status;
  std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  for (std::string& line : lines) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos || colon == 0) continue;
    const absl::string_view path = absl::string_view(line).substr(0, colon);
    if (path.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.[]") ==
        absl::string_view::npos) {
      line.insert(0, Where(path));
    }
  }
  return InvalidArgument(absl::StrJoin(lines, "\n"));
}

StatusOr<JobFile> LoadJobFile(const std::string& path, const std::vector<std::string>& settings) {
  JobFile job;
  job.settings = settings;
  v1::JobSpec& spec = job.spec;
  const Status read = wire::ParseYamlFile(path, &spec, &job.positions);
  if (read.code() == absl::StatusCode::kNotFound) {
    return NotFound("no job file ", path,
                    "; name a YAML file, for example configs/jobs/seqrev.yaml");
  }
  RETURN_IF_ERROR(read);
  for (const std::string& setting : settings) {
    RETURN_IF_ERROR(wire::ApplySetting(setting, &spec));
  }
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (spec.has_checkpoint()) {
    Resolve(OriginOf("checkpoint.path", job, folder), spec.mutable_checkpoint()->mutable_path());
  }
  if (spec.has_sample()) {
    Resolve(OriginOf("sample.checkpoint", job, folder),
            spec.mutable_sample()->mutable_checkpoint());
  }
  if (spec.has_data()) RETURN_IF_ERROR(SettleData(folder, &job));
  return job;
}

}  // namespace weft
