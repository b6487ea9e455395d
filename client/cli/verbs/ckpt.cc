// weft ckpt: looks at checkpoints on disk; needs no coordinator.
#include "nlohmann/json.hpp"

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/ckpt/manifest.h"

namespace weft::cli {
namespace {

// One checkpoint's own folder has a manifest; else those below it.
StatusOr<std::vector<std::string>> FoldersAt(const std::string& path) {
  auto folders = ckpt::ListCheckpoints(path);
  if (!folders.ok() && folders.status().code() != absl::StatusCode::kNotFound) {
    return folders.status();
  }
  if (!folders.ok() || folders->empty()) {
    const auto single = ckpt::NewestVerified(path, nullptr);
    if (single.status().code() != absl::StatusCode::kNotFound) {
      return std::vector<std::string>{path};
    }
    return NotFound("no checkpoint in ", path,
                    "; name a job's folder, such as runs/<job name>, or one step-... folder in it");
  }
  return folders;
}

StatusOr<int> Report(Session& session, const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, FoldersAt(path));
  Table table{.header = {"STEP", "JOB", "SIZE", "STATE", "DIGEST", "PATH"},
              .rows = {},
              .right = {true, false, true}};
  Status worst;
  for (const std::string& folder : folders) {
    const auto info = ckpt::VerifyCheckpoint(folder);
    if (!info.ok() && worst.ok()) worst = info.status();
    int64_t bytes = 0;
    nlohmann::json row = {{"path", folder}, {"verified", info.ok()}};
    if (info.ok()) {
      for (const ckpt::ManifestFile& file : info->manifest.files) bytes += file.bytes;
      row["step"] = info->manifest.step;
      row["job"] = info->manifest.job;
      row["bytes"] = bytes;
      row["state_digest"] = info->manifest.state_digest;
      table.rows.push_back({absl::StrCat(info->manifest.step), info->manifest.job,
                            FormatBytes(bytes), "verified",
                            info->manifest.state_digest.substr(0, 12), folder});
    } else {
      row["error"] = std::string(info.status().message());
      table.rows.push_back({"-", "-", "-", "damaged", "-", folder});
    }
    if (session.printer.json()) session.printer.Line(row.dump());
  }
  if (!session.printer.json()) session.printer.Rows(table);
  if (!worst.ok()) session.printer.Error(worst);
  return worst.ok() ? static_cast<int>(kSuccess) : static_cast<int>(kError);
}

}  // namespace

VerbBody DeclareCkpt(CLI::App& app) {
  struct Flags {
    std::string folder;
    CLI::App* verify = nullptr;
  };
  auto flags = std::make_shared<Flags>();
  app.require_subcommand(1);
  CLI::App* list = app.add_subcommand("list", "Checkpoints in a folder, newest first");
  flags->verify = app.add_subcommand("verify", "Check every file; exit code 1 if one is damaged");
  for (CLI::App* verb : {list, flags->verify}) {
    verb->add_option("folder", flags->folder, "A job's folder, or one checkpoint's")
        ->required()
        ->type_name("DIR");
  }
  return [flags](Session& session) -> StatusOr<int> {
    ASSIGN_OR_RETURN(const int code, Report(session, flags->folder));
    // A list that names a damaged one is still a list.
    return flags->verify->parsed() ? code : static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
